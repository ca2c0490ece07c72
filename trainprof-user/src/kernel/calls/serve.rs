//! The process that attaches and detaches the probes on GPU calls.
//!
//! That takes capabilities which the collector gives up, and milliseconds that the collector does not have.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use aya::{
    Ebpf,
    programs::uprobe::{UProbeLink, UProbeScope},
};
use trainprof_common::gpu::{Function, MAX_FUNCTIONS};

use super::{
    ENTRY, Notice, Order, RETURN,
    catalogue::{CATALOGUE, Library, Row},
    exports::{Site, sites},
    mapped::{self, Mapped},
};
use crate::{
    arch::Emulates,
    env::host::KernelVersion,
    kernel::{
        aside::{Line, Received},
        uprobe::{attach, raise_descriptor_limit},
    },
    privilege::{Keep, drop_unneeded},
};

/// Processes that are probed at once. Each takes some hundred descriptors.
const MAX_PROCESSES: usize = 128;
/// Nothing is to be done without an order: how long one is waited for at a time.
const IDLE: Duration = Duration::from_secs(60);

struct Attached {
    pid: u32,
    /// Of the library.
    identity: String,
    links: Vec<(u16, UProbeLink)>,
}

struct Server<'a> {
    ebpf: &'a mut Ebpf,
    line: &'a Line,
    emulates: Emulates,
    /// Functions by library file and name.
    numbers: BTreeMap<(String, &'static str), u16>,
    /// What was resolved of each library.
    resolved: BTreeMap<String, BTreeMap<&'static str, Site>>,
    attached: Vec<Attached>,
    detached: Vec<u16>,
    told: Vec<String>,
    /// The kernel lets us attach nothing.
    refused: bool,
}

/// Serves until the line ends. The programs are loaded.
pub fn serve(ebpf: &mut Ebpf, line: &Line) {
    let keep = Keep {
        read_processes: true,
        attach_uprobes: true,
        ..Keep::default()
    };
    if drop_unneeded(keep).is_err() {
        return;
    }
    raise_descriptor_limit();
    let mut server = Server {
        ebpf,
        line,
        emulates: Emulates::by(KernelVersion::running()),
        numbers: BTreeMap::new(),
        resolved: BTreeMap::new(),
        attached: Vec::new(),
        detached: Vec::new(),
        told: Vec::new(),
        refused: false,
    };
    loop {
        match line.receive(IDLE) {
            _ if line.is_over() => return,
            Received::Message(Order::Look { pid, uses_gpu }) => {
                server.look(pid, uses_gpu);
                let _ = line.send(&Notice::Looked { pid });
            }
            Received::Message(Order::Forget { pid }) => server.attached.retain(|a| a.pid != pid),
            Received::Message(Order::Detach { function }) => server.detach(function),
            Received::Nothing => {}
            Received::Ended => return,
        }
    }
}

impl Server<'_> {
    fn look(&mut self, pid: u32, uses_gpu: bool) {
        if self.refused {
            return;
        }
        let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else {
            return;
        };
        let mut mapped = mapped::decode(&maps);
        drop(maps);
        let has_runtime = mapped.iter().any(|m| m.library == Library::Runtime);
        mapped.retain(|m| {
            !self
                .attached
                .iter()
                .any(|a| a.pid == pid && a.identity == m.identity)
        });
        if mapped.is_empty() || !(uses_gpu || makes_calls(pid, &mapped)) {
            return;
        }
        for library in mapped {
            if self.attached.len() >= MAX_PROCESSES {
                self.tell(
                    "processes",
                    &format!("more than {MAX_PROCESSES} of them use the GPU's libraries"),
                );
                return;
            }
            self.attach(pid, &library, has_runtime);
        }
    }

    fn attach(&mut self, pid: u32, mapped: &Mapped, has_runtime: bool) {
        let Some(scope) = NonZeroU32::new(pid).map(UProbeScope::OneProcess) else {
            return;
        };
        // As the process sees it: it may be in a container.
        let path = PathBuf::from(format!("/proc/{pid}/root{}", mapped.path));
        let file = mapped
            .path
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        if !self.resolved.contains_key(&mapped.identity) {
            let rows = CATALOGUE.iter().filter(|row| row.library == mapped.library);
            let wanted = rows.map(|row| (row.name, row.arguments()));
            match File::open(&path).and_then(|file| sites(file, wanted, self.emulates)) {
                Ok(found) => {
                    self.resolved.insert(mapped.identity.clone(), found);
                }
                Err(error) => return self.tell(&file, &error.to_string()),
            }
        }
        let sites = self
            .resolved
            .get(&mapped.identity)
            .cloned()
            .unwrap_or_default();
        let mut links = Vec::new();
        for row in CATALOGUE {
            let Some(site) = sites.get(row.name) else {
                continue;
            };
            if !row.wanted(has_runtime) {
                continue;
            }
            let Some(number) = self.number(&file, row, *site) else {
                continue;
            };
            if self.detached.contains(&number) {
                continue;
            }
            let cookie = Function {
                number,
                kind: row.kind as u8,
                size: row.size,
                times: row.times,
            }
            .pack();
            // The return first: no call is then seen to begin that is not seen to end.
            for program in [RETURN, ENTRY] {
                match attach(self.ebpf, program, site.offset, cookie, &path, scope) {
                    Ok(link) => links.push((number, link)),
                    Err((_, true)) => {
                        self.refused = true;
                        return self.tell(
                            "all",
                            "this kernel lets nobody without CAP_SYS_ADMIN attach uprobes",
                        );
                    }
                    Err((error, false)) => {
                        // The process may just have ended.
                        if Path::new(&format!("/proc/{pid}")).exists() {
                            self.tell(row.name, &error);
                        }
                    }
                }
            }
        }
        self.attached.push(Attached {
            pid,
            identity: mapped.identity.clone(),
            links,
        });
        let _ = self.line.send(&Notice::Attached { pid });
    }

    /// The number of a function, told when it is new. `None` when there are too many.
    fn number(&mut self, library: &str, row: &Row, site: Site) -> Option<u16> {
        let key = (library.to_owned(), row.name);
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let number = u16::try_from(self.numbers.len())
            .ok()
            .filter(|n| usize::from(*n) < MAX_FUNCTIONS)?;
        let told = self.line.send(&Notice::Function {
            number,
            library: library.to_owned(),
            name: row.name.to_owned(),
            steps: site.steps,
        });
        // A function that nobody was told of must not be probed.
        if !matches!(told, Ok(true)) {
            return None;
        }
        self.numbers.insert(key, number);
        Some(number)
    }

    fn detach(&mut self, function: u16) {
        self.detached.push(function);
        for attached in &mut self.attached {
            attached.links.retain(|(number, _)| *number != function);
        }
    }

    /// Tells of a failure, once of each kind.
    fn tell(&mut self, what: &str, reason: &str) {
        let what = what.to_owned();
        if !self.told.contains(&what) && self.told.len() < MAX_FUNCTIONS {
            let _ = self.line.send(&Notice::Failed {
                what: what.clone(),
                reason: reason.to_owned(),
            });
            self.told.push(what);
        }
    }
}

/// Whether a process may call the libraries that it has mapped: not one that merely inherited them, as a loader's
/// forked worker does. CUDA opens its devices when it begins.
fn makes_calls(pid: u32, mapped: &[Mapped]) -> bool {
    let parent = fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
            line.trim().parse::<u32>().ok()
        });
    let parents = parent
        .and_then(|parent| fs::read_to_string(format!("/proc/{parent}/maps")).ok())
        .map(|maps| mapped::decode(&maps))
        .unwrap_or_default();
    // Where a library lies is random: at the same place in both, it was there before the fork.
    let own = mapped.iter().any(|m| {
        !parents
            .iter()
            .any(|p| p.identity == m.identity && p.start == m.start)
    });
    own || has_device_open(pid)
}

fn has_device_open(pid: u32) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            fs::read_link(entry.path())
                .is_ok_and(|target| target.to_string_lossy().starts_with("/dev/nvidia"))
        })
}
