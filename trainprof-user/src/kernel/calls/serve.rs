//! The process that attaches and detaches the probes on calls into the GPU's runtime and into the framework.
//!
//! That takes capabilities which the collector gives up, and milliseconds that the collector does not have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use aya::Ebpf;
use trainprof_common::gpu::{Function, MAX_FUNCTIONS};

use super::{
    Notice, Order, PROGRAMS,
    catalogue::{BACKWARD_PASSES, CATALOGUE, EXECUTIONS, GPU_CALLS, Library, Row, UPDATES},
    exports::{Site, sites},
    mapped::{self, Mapped},
};
use crate::{
    arch::Emulates,
    env::host::KernelVersion,
    kernel::{
        aside::{Line, Received},
        descriptors,
        uprobe::{
            links::{Links, Spot, Together, attach},
            multi::Relocated,
        },
    },
    privilege::{Keep, drop_unneeded},
};

/// Processes that are probed at once, in each library. Each takes some hundred descriptors.
const MAX_PROCESSES: usize = 128;
/// What a parent has mapped is read again after this long.
const PARENT_AGE: Duration = Duration::from_secs(3);
/// Nothing is to be done without an order: how long one is waited for at a time.
const IDLE: Duration = Duration::from_secs(60);

/// Probes on a library of one process.
struct Attached {
    pid: u32,
    library: Library,
    /// Of the library.
    identity: String,
    path: PathBuf,
    links: Probes,
}

/// Functions by their numbers.
enum Probes {
    /// All come and go at once.
    Together(Vec<(u16, Spot)>, Links),
    Each(Vec<(u16, Links)>),
}

/// Programs for links of many uprobes.
enum Programs {
    /// Not looked at: nothing was attached yet.
    Prepared(Box<Relocated>),
    Loaded(Together),
    /// This kernel has no such links.
    None,
}

struct Server<'a> {
    ebpf: &'a mut Ebpf,
    programs: Programs,
    line: &'a Line,
    emulates: Emulates,
    /// Whether the GPU's libraries are looked at.
    gpu: bool,
    /// Functions by library file and name.
    numbers: BTreeMap<(String, &'static str), u16>,
    /// What was resolved of each library.
    resolved: BTreeMap<String, BTreeMap<&'static str, Site>>,
    attached: Vec<Attached>,
    detached: Vec<u16>,
    told: Vec<String>,
    /// The kernel lets us attach nothing.
    refused: bool,
    /// What the parent of the process that was looked at last has mapped, and since when that is known: a set of workers has the same.
    parent: Option<(u32, Instant, Vec<Mapped>)>,
}

/// Serves until the line ends. The programs are loaded, but for those `prepared` for links of many uprobes. `gpu`: the GPU's libraries are
/// looked at.
pub fn serve(ebpf: &mut Ebpf, prepared: Result<Relocated, String>, gpu: bool, line: &Line) {
    let keep = Keep {
        read_processes: true,
        attach_uprobes: true,
        ..Keep::default()
    };
    if drop_unneeded(keep).is_err() {
        return;
    }
    descriptors::raise_limit();
    let mut server = Server {
        ebpf,
        programs: prepared.map_or(Programs::None, |programs| {
            Programs::Prepared(Box::new(programs))
        }),
        line,
        emulates: Emulates::by(KernelVersion::running()),
        gpu,
        numbers: BTreeMap::new(),
        resolved: BTreeMap::new(),
        attached: Vec::new(),
        detached: Vec::new(),
        told: Vec::new(),
        refused: false,
        parent: None,
    };
    loop {
        match line.receive(IDLE) {
            _ if line.is_over() => return,
            Received::Message(Order::Look { pid, uses_gpu }) => {
                server.look(pid, uses_gpu);
                let _ = line.send(&Notice::Looked { pid });
            }
            Received::Message(Order::Forget { pid }) => server.attached.retain(|a| a.pid != pid),
            Received::Message(Order::Detach { functions }) => server.detach(&functions),
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
        mapped.retain(|m| {
            let there = |a: &Attached| a.pid == pid && a.identity == m.identity;
            (self.gpu || !m.library.is_of_gpu()) && !self.attached.iter().any(there)
        });
        if mapped.is_empty() || !(uses_gpu || self.makes_calls(pid, &mapped)) {
            return;
        }
        for library in mapped {
            let alike = self
                .attached
                .iter()
                .filter(|a| a.library == library.library);
            if alike.count() >= MAX_PROCESSES {
                self.tell(
                    &self.of_all("processes"),
                    &format!(
                        "more than {MAX_PROCESSES} of them use the GPU's libraries, or a framework"
                    ),
                );
                continue;
            }
            self.attach(pid, &library);
        }
    }

    /// Whether a process may call the libraries that it has mapped: not one that merely inherited them, as a loader's forked worker
    /// does. CUDA opens its devices when it begins.
    fn makes_calls(&mut self, pid: u32, mapped: &[Mapped]) -> bool {
        let parent = parent_of(pid).unwrap_or_default();
        let known =
            |(of, since, _): &&(u32, Instant, _)| *of == parent && since.elapsed() < PARENT_AGE;
        if self.parent.as_ref().filter(known).is_none() {
            let maps = fs::read_to_string(format!("/proc/{parent}/maps")).unwrap_or_default();
            self.parent = Some((parent, Instant::now(), mapped::decode(&maps)));
        }
        let parents = self.parent.iter().flat_map(|(_, _, mapped)| mapped);
        // Where a library lies is random: at the same place in both, it was there before the fork.
        let inherited: BTreeSet<(&str, u64)> = parents
            .map(|parents| (parents.identity.as_str(), parents.start))
            .collect();
        let own = |m: &Mapped| !inherited.contains(&(m.identity.as_str(), m.start));
        mapped.iter().any(own) || has_device_open(pid)
    }

    fn attach(&mut self, pid: u32, mapped: &Mapped) {
        let Some(process) = NonZeroU32::new(pid) else {
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
            let symbols = mapped.library.symbols();
            match File::open(&path).and_then(|file| sites(file, symbols, wanted, self.emulates)) {
                Ok(found) => {
                    self.resolved.insert(mapped.identity.clone(), found);
                }
                Err(error) => {
                    let what = match mapped.library {
                        Library::Runtime | Library::Driver => format!("{GPU_CALLS}: {file}"),
                        Library::Framework => BACKWARD_PASSES.to_owned(),
                        Library::Binding => UPDATES.to_owned(),
                        Library::Graphs | Library::Xla | Library::Boosting => {
                            format!("{EXECUTIONS}: {file}")
                        }
                    };
                    return self.tell(&what, &error.to_string());
                }
            }
        }
        let sites = self
            .resolved
            .get(&mapped.identity)
            .cloned()
            .unwrap_or_default();
        let mut spots = Vec::new();
        for row in CATALOGUE {
            let Some(site) = sites.get(row.name) else {
                continue;
            };
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
                of_gpu: row.of_gpu(),
            }
            .pack();
            let spot = Spot {
                offset: site.offset,
                cookie,
                returns: row.returns(),
            };
            spots.push((number, row, spot));
        }
        let Some(links) = self.probe(process, &path, &spots) else {
            self.refused = true;
            return self.tell(
                &self.of_all("all"),
                "this kernel lets nobody without CAP_SYS_ADMIN attach uprobes",
            );
        };
        self.attached.push(Attached {
            pid,
            library: mapped.library,
            identity: mapped.identity.clone(),
            path,
            links,
        });
        let _ = self.line.send(&Notice::Attached { pid });
    }

    /// Probes places of a file, at once where the kernel can; `None`: we may not.
    fn probe(
        &mut self,
        pid: NonZeroU32,
        path: &Path,
        spots: &[(u16, &'static Row, Spot)],
    ) -> Option<Probes> {
        self.load();
        let all: Vec<Spot> = spots.iter().map(|(.., spot)| *spot).collect();
        if let Programs::Loaded(together) = &self.programs
            && !all.is_empty()
            && let Ok(links) = together.attach(path, pid, &all)
        {
            let spots = spots.iter().map(|(number, _, spot)| (*number, *spot));
            return Some(Probes::Together(spots.collect(), links));
        }
        // One place that is refused fails them all: each by itself tells which it is, and why.
        let mut each = Vec::new();
        for (number, row, spot) in spots {
            let together = match &self.programs {
                Programs::Loaded(together) => Some(together),
                _ => None,
            };
            match attach(self.ebpf, PROGRAMS, together, path, pid, spot) {
                Ok(links) => each.push((*number, links)),
                Err((_, true)) => return None,
                Err((error, false)) => {
                    // The process may just have ended.
                    if Path::new(&format!("/proc/{pid}")).exists() {
                        self.tell(&row.title(), &error);
                    }
                }
            }
        }
        Some(Probes::Each(each))
    }

    /// Loads the programs for links of many uprobes, the first time.
    fn load(&mut self) {
        if let Programs::Prepared(prepared) = &self.programs {
            let loaded = Together::load(prepared, PROGRAMS);
            self.programs = loaded.map_or(Programs::None, Programs::Loaded);
        }
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
            title: row.title(),
            kind: row.kind as u8,
            driver: row.library == Library::Driver,
            steps: site.steps,
        });
        // A function that nobody was told of must not be probed.
        if !matches!(told, Ok(true)) {
            return None;
        }
        self.numbers.insert(key, number);
        Some(number)
    }

    fn detach(&mut self, functions: &[u16]) {
        self.detached.extend(functions);
        let mut lost = None;
        for attached in &mut self.attached {
            match &mut attached.links {
                Probes::Each(each) => each.retain(|(number, _)| !functions.contains(number)),
                Probes::Together(spots, links) => {
                    let before = spots.len();
                    spots.retain(|(number, _)| !functions.contains(number));
                    if spots.len() == before {
                        continue;
                    }
                    // First the others anew: a call that both see counts once, since its frame is the same.
                    let rest: Vec<Spot> = spots.iter().map(|(_, spot)| *spot).collect();
                    let anew = match (&self.programs, NonZeroU32::new(attached.pid)) {
                        (Programs::Loaded(together), Some(pid)) if !rest.is_empty() => {
                            together.attach(&attached.path, pid, &rest)
                        }
                        _ => Ok(Links::default()),
                    };
                    *links = anew.unwrap_or_else(|error| {
                        // The process may just have ended.
                        if Path::new(&format!("/proc/{}", attached.pid)).exists() {
                            lost = Some(error.to_string());
                        }
                        Links::default()
                    });
                }
            }
        }
        if let Some(error) = lost {
            self.tell(&self.of_all("all of a process"), &error);
        }
    }

    /// What is missing where it is not about one function.
    fn of_all(&self, what: &str) -> String {
        if self.gpu {
            format!("{GPU_CALLS}: {what}")
        } else {
            BACKWARD_PASSES.to_owned()
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

/// The parent of a process.
fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
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
