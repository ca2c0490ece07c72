//! Which devices a job uses: by who has a context, and by `CUDA_VISIBLE_DEVICES`. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::gpu::GpuDeviceFact;

/// What a process was told of devices, by its environment when it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// `CUDA_VISIBLE_DEVICES`.
    pub cuda: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub order: Option<String>,
    /// `NVIDIA_VISIBLE_DEVICES`: what its container was given.
    pub container: Option<String>,
}

impl Visible {
    /// Reads `/proc/PID/environ` (`proc_pid_environ(5)`).
    pub fn decode(environ: &[u8]) -> Self {
        let mut out = Self::default();
        for entry in environ.split(|byte| *byte == 0) {
            let Ok(entry) = std::str::from_utf8(entry) else {
                continue;
            };
            let field = match entry.split_once('=') {
                Some(("CUDA_VISIBLE_DEVICES", value)) => (&mut out.cuda, value),
                Some(("CUDA_DEVICE_ORDER", value)) => (&mut out.order, value),
                Some(("NVIDIA_VISIBLE_DEVICES", value)) => (&mut out.container, value),
                _ => continue,
            };
            *field.0 = Some(field.1.to_owned());
        }
        out
    }

    /// Whether a process may use a device, by number; a device that is not in the map may or may not be used.
    fn of(&self, devices: &[GpuDeviceFact]) -> BTreeMap<u32, bool> {
        let wholes: Vec<&GpuDeviceFact> = devices.iter().filter(|d| d.mig.is_none()).collect();
        let container = self.container(devices, &wholes);
        // CUDA numbers the fastest first, unless told otherwise; NVML goes by the bus.
        let same = wholes.iter().all(|d| d.name == wholes[0].name);
        let by_bus = self.order.as_deref() == Some("PCI_BUS_ID");
        let numbered = container.as_ref().filter(|_| same || by_bus);
        let Some(list) = &self.cuda else {
            return match &container {
                // Everything of the host: that says nothing.
                Some(given) if given.len() < wholes.len() => everything(devices, given),
                _ => BTreeMap::new(),
            };
        };
        let mut chosen = BTreeSet::new();
        for entry in list.split(',').map(str::trim) {
            match find(entry, devices, numbered.map(Vec::as_slice)) {
                Found::Device(number) => {
                    chosen.insert(number);
                }
                // What follows an entry that is none is not looked at (CUDA programming guide).
                Found::Nothing => break,
                Found::Unclear => return BTreeMap::new(),
            }
        }
        devices
            .iter()
            .map(|d| {
                let slices = devices.iter().filter(|s| s.index == d.index);
                let slice = d.mig.is_none() && slices.clone().any(|s| chosen.contains(&s.device));
                let parent = d.mig.is_some()
                    && wholes
                        .iter()
                        .any(|w| w.index == d.index && chosen.contains(&w.device));
                (d.device, chosen.contains(&d.device) || slice || parent)
            })
            .collect()
    }

    /// The whole devices that its container was given, in the order of the bus; `None` when that cannot be told.
    fn container<'d>(
        &self,
        devices: &'d [GpuDeviceFact],
        wholes: &[&'d GpuDeviceFact],
    ) -> Option<Vec<&'d GpuDeviceFact>> {
        let list = match self.container.as_deref() {
            None | Some("" | "all" | "void" | "none") => return Some(wholes.to_vec()),
            Some(list) => list,
        };
        let mut given = Vec::new();
        for entry in list.split(',').map(str::trim) {
            match find(entry, devices, Some(wholes)) {
                Found::Device(number) => given.push(number),
                _ => return None,
            }
        }
        Some(
            wholes
                .iter()
                .filter(|d| given.contains(&d.device))
                .copied()
                .collect(),
        )
    }
}

fn everything(devices: &[GpuDeviceFact], given: &[&GpuDeviceFact]) -> BTreeMap<u32, bool> {
    devices
        .iter()
        .map(|d| (d.device, given.iter().any(|g| g.index == d.index)))
        .collect()
}

enum Found {
    Device(u32),
    Nothing,
    Unclear,
}

/// An entry of a list: a number, or a UUID that may be cut short. `numbered` are the devices that numbers mean.
fn find(entry: &str, devices: &[GpuDeviceFact], numbered: Option<&[&GpuDeviceFact]>) -> Found {
    if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
        let mut fits = devices.iter().filter(|d| {
            d.uuid
                .as_deref()
                .is_some_and(|uuid| uuid.starts_with(entry))
        });
        return match (fits.next(), fits.next()) {
            (Some(device), None) => Found::Device(device.device),
            _ => Found::Nothing,
        };
    }
    match (entry.parse::<usize>(), numbered) {
        (Ok(_), None) => Found::Unclear,
        (Ok(n), Some(devices)) => devices
            .get(n)
            .map_or(Found::Nothing, |d| Found::Device(d.device)),
        (Err(_), _) => Found::Nothing,
    }
}

/// Whether the job uses each device, by number. `visible` are its processes, `contexts` who has a context where.
pub fn decide(
    devices: &[GpuDeviceFact],
    visible: &[&Visible],
    contexts: &BTreeMap<u32, BTreeSet<u32>>,
    is_job: impl Fn(u32) -> bool,
) -> BTreeMap<u32, Option<bool>> {
    let has_context = |device: &GpuDeviceFact| {
        devices
            .iter()
            // A whole device is used when a slice of it is.
            .filter(|d| {
                d.device == device.device || (device.mig.is_none() && d.index == device.index)
            })
            .filter_map(|d| contexts.get(&d.device))
            .flatten()
            .any(|pid| is_job(*pid))
    };
    let somewhere = devices.iter().any(has_context);
    let may: Vec<BTreeMap<u32, bool>> = visible.iter().map(|v| v.of(devices)).collect();
    devices
        .iter()
        .map(|device| {
            let told: Vec<Option<bool>> =
                may.iter().map(|m| m.get(&device.device).copied()).collect();
            let hidden = !told.is_empty() && told.iter().all(|t| *t == Some(false));
            let used = if has_context(device) {
                Some(true)
            } else if somewhere || hidden {
                Some(false)
            } else if told.contains(&Some(true)) {
                Some(true)
            } else {
                None
            };
            (device.device, used)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(device: u32, index: u32, mig: Option<u32>, uuid: &str) -> GpuDeviceFact {
        GpuDeviceFact {
            device,
            index,
            mig,
            uuid: Some(uuid.to_owned()),
            name: Some("H100".to_owned()),
            driver: None,
            memory_total_bytes: None,
            used_by_job: None,
        }
    }

    fn four() -> Vec<GpuDeviceFact> {
        (0..4)
            .map(|i| device(i, i, None, &format!("GPU-{i}aaa-bbb")))
            .collect()
    }

    fn cuda(list: &str) -> Visible {
        Visible {
            cuda: Some(list.to_owned()),
            ..Visible::default()
        }
    }

    fn decided(
        devices: &[GpuDeviceFact],
        visible: &[Visible],
        contexts: &[(u32, u32)],
    ) -> Vec<Option<bool>> {
        let mut by_device = BTreeMap::<u32, BTreeSet<u32>>::new();
        for (device, pid) in contexts {
            by_device.entry(*device).or_default().insert(*pid);
        }
        let visible: Vec<&Visible> = visible.iter().collect();
        decide(devices, &visible, &by_device, |pid| pid < 100)
            .into_values()
            .collect()
    }

    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);

    #[test]
    fn environments_are_decoded() {
        let environ = b"A=1\0CUDA_VISIBLE_DEVICES=0,1\0CUDA_DEVICE_ORDER=PCI_BUS_ID\0NVIDIA_VISIBLE_DEVICES=all\0";
        let expected = Visible {
            cuda: Some("0,1".to_owned()),
            order: Some("PCI_BUS_ID".to_owned()),
            container: Some("all".to_owned()),
        };
        assert_eq!(Visible::decode(environ), expected);
        assert_eq!(
            Visible::decode(b"\xff=\0CUDA_VISIBLE_DEVICES\0"),
            Visible::default()
        );
        assert_eq!(Visible::decode(b"CUDA_VISIBLE_DEVICES=\0"), cuda(""));
    }

    #[test]
    fn lists_of_visible_devices() {
        let cases: [(&str, [Option<bool>; 4]); 9] = [
            ("0", [YES, NO, NO, NO]),
            ("3,1", [NO, YES, NO, YES]),
            ("", [NO; 4]),
            ("-1", [NO; 4]),
            ("1,-1,2", [NO, YES, NO, NO]),
            ("7,0", [NO; 4]),
            ("GPU-2aaa-bbb", [NO, NO, YES, NO]),
            ("GPU-2", [NO, NO, YES, NO]),
            ("GPU-", [NO; 4]),
        ];
        for (list, expected) in cases {
            assert_eq!(decided(&four(), &[cuda(list)], &[]), expected, "{list:?}");
        }
        assert_eq!(decided(&four(), &[Visible::default()], &[]), [None; 4]);
        assert_eq!(
            decided(&four(), &[cuda("0"), cuda("1")], &[]),
            [YES, YES, NO, NO]
        );
        // One process that was told nothing may use any of them.
        assert_eq!(
            decided(&four(), &[cuda("0"), Visible::default()], &[]),
            [YES, None, None, None]
        );
    }

    #[test]
    fn contexts_say_more_than_lists() {
        assert_eq!(
            decided(&four(), &[cuda("0,1")], &[(1, 5), (2, 500)]),
            [NO, YES, NO, NO]
        );
        assert_eq!(
            decided(&four(), &[Visible::default()], &[(2, 500)]),
            [None; 4]
        );
    }

    #[test]
    fn numbers_mean_nothing_among_unlike_devices_but_by_the_bus() {
        let mut devices = four();
        devices[2].name = Some("T4".to_owned());
        assert_eq!(decided(&devices, &[cuda("0")], &[]), [None; 4]);
        let by_bus = Visible {
            order: Some("PCI_BUS_ID".to_owned()),
            ..cuda("0")
        };
        assert_eq!(decided(&devices, &[by_bus], &[]), [YES, NO, NO, NO]);
        assert_eq!(
            decided(&devices, &[cuda("GPU-1aaa")], &[]),
            [NO, YES, NO, NO]
        );
    }

    #[test]
    fn a_container_numbers_what_it_was_given() {
        let inside = |list: Option<&str>, given: &str| Visible {
            cuda: list.map(str::to_owned),
            order: None,
            container: Some(given.to_owned()),
        };
        for (list, given, expected) in [
            (None, "GPU-2aaa-bbb,GPU-3aaa-bbb", [NO, NO, YES, YES]),
            (Some("1"), "GPU-2aaa-bbb,GPU-3aaa-bbb", [NO, NO, NO, YES]),
            (Some("0"), "3", [NO, NO, NO, YES]),
            (Some("1"), "all", [NO, YES, NO, NO]),
            (None, "all", [None; 4]),
            (None, "void", [None; 4]),
            (Some("0"), "unknown", [None; 4]),
        ] {
            assert_eq!(
                decided(&four(), &[inside(list, given)], &[]),
                expected,
                "{list:?} of {given}"
            );
        }
    }

    #[test]
    fn slices_and_what_they_are_slices_of() {
        let devices = [
            device(0, 0, None, "GPU-0"),
            device(1, 0, Some(0), "MIG-aa"),
            device(2, 0, Some(1), "MIG-bb"),
        ];
        assert_eq!(decided(&devices, &[cuda("MIG-bb")], &[]), [YES, NO, YES]);
        assert_eq!(decided(&devices, &[], &[(1, 5)]), [YES, YES, NO]);
    }
}
