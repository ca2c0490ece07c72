//! Far ends of the sockets that the job waits on, out of the tables of its network namespace.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use super::{SECOND, pace::Pace};
use crate::{
    env::process,
    record::{Record, fact::SocketFact},
    time::KtimeNs,
};

/// Sockets that are remembered, so that each is looked up once; the oldest are forgotten.
const MOST: usize = 1024;
/// Bytes of one table that are read at most: about 28 000 connections.
const MOST_BYTES: u64 = 4 << 20;
/// Longest line: a path of a unix socket has 108 bytes, each up to 4 as an escape.
const MOST_LINE: u64 = 1024;
/// Looks for a socket that is in no table; it may have been between two states.
const TRIES: u32 = 3;
/// A socket is looked up once somebody waited on it so long, at a time or within an interval, nanoseconds: a loader
/// opens many that live for one message, and the table of all connections is dear to read.
const WORTH_NS: u64 = 5_000_000;

/// Sockets that were met.
pub(super) struct Sockets {
    seen: BTreeSet<u64>,
    /// In the order in which they were met.
    order: VecDeque<u64>,
    new: Vec<New>,
    pace: Pace,
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            seen: BTreeSet::new(),
            order: VecDeque::new(),
            new: Vec::new(),
            pace: Pace::sparing(SECOND),
        }
    }
}

/// A socket whose far end is not known yet.
#[derive(Debug)]
struct New {
    inode: u64,
    /// A process that waited on it.
    pid: u32,
    tries: u32,
}

impl Sockets {
    /// A process waited on a socket for so many nanoseconds.
    pub(super) fn meet(&mut self, pid: u32, inode: u64, waited_ns: u64) {
        if inode == 0 || waited_ns < WORTH_NS || !self.seen.insert(inode) {
            return;
        }
        self.order.push_back(inode);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
            self.new.retain(|new| new.inode != oldest);
        }
        self.new.push(New {
            inode,
            pid,
            tries: 0,
        });
    }

    /// Makes the next look due.
    pub(super) fn now(&mut self) {
        self.pace.now();
    }

    pub(super) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// Looks the new ones up, no more often than the pace allows.
    pub(super) fn resolve(&mut self, now: KtimeNs, out: &mut Vec<Record>) {
        let new = &mut self.new;
        self.pace.round(now, || {
            for (_, sockets) in by_namespace(std::mem::take(new)) {
                let mut wanted: BTreeMap<u64, New> =
                    sockets.into_iter().map(|new| (new.inode, new)).collect();
                for socket in look_up(&mut wanted) {
                    wanted.remove(&socket.inode);
                    out.push(Record::Socket(socket));
                }
                new.extend(wanted.into_values().filter_map(|mut new| {
                    new.tries += 1;
                    (new.tries < TRIES).then_some(new)
                }));
            }
        });
    }
}

/// Sockets by the network namespace of their process; a process that is gone takes its view of the tables with it.
fn by_namespace(sockets: Vec<New>) -> BTreeMap<PathBuf, Vec<New>> {
    let mut namespaces = BTreeMap::<u32, Option<PathBuf>>::new();
    let mut grouped = BTreeMap::<PathBuf, Vec<New>>::new();
    for new in sockets {
        let namespace = namespaces
            .entry(new.pid)
            .or_insert_with(|| fs::read_link(process::shared(new.pid, "ns/net")).ok());
        if let Some(namespace) = namespace {
            grouped.entry(namespace.clone()).or_default().push(new);
        }
    }
    grouped
}

type Decode = fn(&str) -> Option<Row>;

/// Tables below /proc/PID/net, the cheapest first: the kernel walks all of its places for connections, used or not.
const TABLES: [(&str, &str, Decode); 5] = [
    ("unix", "unix", decode_unix),
    ("tcp", "tcp", decode_inet),
    ("tcp6", "tcp", decode_inet),
    ("udp", "udp", decode_inet),
    ("udp6", "udp", decode_inet),
];

/// Reads tables until every socket is found that is still there: many live for one message, and to find that they are in no table
/// takes reading all of them. Those that are gone are taken from `wanted`.
fn look_up(wanted: &mut BTreeMap<u64, New>) -> Vec<SocketFact> {
    let mut found = Vec::<SocketFact>::new();
    let pids: BTreeSet<u32> = wanted.values().map(|new| new.pid).collect();
    for (turn, (table, family, decode)) in TABLES.into_iter().enumerate() {
        if turn == 1 && found.len() < wanted.len() {
            let open: BTreeSet<u64> = pids.iter().flat_map(|pid| open_sockets(*pid)).collect();
            wanted.retain(|inode, _| {
                open.contains(inode) || found.iter().any(|fact| fact.inode == *inode)
            });
        }
        if found.len() == wanted.len() {
            break;
        }
        // All of them have the same view; one may be gone by now.
        let open = |pid: &u32| File::open(process::shared(*pid, "net").join(table)).ok();
        let Some(file) = pids.iter().find_map(open) else {
            continue;
        };
        let missing = wanted.len() - found.len();
        let rows = rows(file, decode)
            .filter(|row| wanted.contains_key(&row.inode))
            .take(missing);
        found.extend(rows.map(|row| SocketFact {
            inode: row.inode,
            family: family.to_owned(),
            peer: row.peer,
        }));
    }
    found
}

/// Inodes of the sockets that a process has open (`/proc/PID/fd`, proc_pid_fd(5)).
fn open_sockets(pid: u32) -> Vec<u64> {
    let entries = fs::read_dir(process::shared(pid, "fd"))
        .into_iter()
        .flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let names = links.filter_map(|link| link.into_os_string().into_string().ok());
    let inode = |name: String| {
        name.strip_prefix("socket:[")?
            .strip_suffix(']')?
            .parse()
            .ok()
    };
    names.filter_map(inode).collect()
}

/// Rows of a table, line by line in bounded memory; lines of another form are left out.
fn rows(table: impl Read, decode: Decode) -> impl Iterator<Item = Row> {
    let mut lines = BufReader::with_capacity(64 << 10, table.take(MOST_BYTES));
    let mut line = Vec::new();
    std::iter::from_fn(move || {
        loop {
            line.clear();
            let mut bounded = (&mut lines).take(MOST_LINE);
            if bounded.read_until(b'\n', &mut line).ok()? == 0 {
                return None;
            }
            let row = decode(String::from_utf8_lossy(&line).trim_end_matches('\n'));
            if row.is_some() {
                return row;
            }
        }
    })
}

/// A socket of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    inode: u64,
    peer: Option<String>,
}

/// A line of /proc/net/tcp, tcp6, udp or udp6 (proc_net_tcp(5)). Sockets that wait only for a time-out to
/// pass have inode 0.
fn decode_inet(line: &str) -> Option<Row> {
    let mut words = line.split_ascii_whitespace();
    let peer = decode_address(words.nth(2)?)?;
    let inode = words.nth(6)?.parse().ok().filter(|inode| *inode != 0)?;
    let connected = peer.port() != 0 || !peer.ip().is_unspecified();
    Some(Row {
        inode,
        peer: connected.then(|| peer.to_string()),
    })
}

/// `ADDRESS:PORT` in hexadecimal. The address is printed as 32-bit numbers, whose bytes in memory are those
/// of the address. An IPv4 address inside IPv6 is given as IPv4.
fn decode_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let hex = |text: &str, digits: usize| {
        let whole = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
        whole.then(|| u32::from_str_radix(text, 16).ok())?
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(hex(address, 8)?.to_ne_bytes()).into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, into) in bytes.chunks_exact_mut(4).enumerate() {
                let word = address.get(8 * at..8 * at + 8)?;
                into.copy_from_slice(&hex(word, 8)?.to_ne_bytes());
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::try_from(hex(port, 4)?).ok()?))
}

/// A line of /proc/net/unix (proc_net_unix(5)): the path that the socket is bound to, which a connection has
/// from the server's end only. An abstract name begins with `@`.
fn decode_unix(line: &str) -> Option<Row> {
    let mut rest = line;
    let mut word = || {
        rest = rest.trim_start_matches(' ');
        let (word, after) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
        rest = after;
        word
    };
    let number = word();
    let digits = number.strip_suffix(':')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for _reference_protocol_flags_type_state in 0..5 {
        word();
    }
    let inode = word().parse().ok().filter(|inode| *inode != 0)?;
    let path = rest.strip_prefix(' ').unwrap_or(rest);
    Some(Row {
        inode,
        peer: (!path.is_empty()).then(|| path.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};

    use super::*;

    const REST: &str = "00000000:00000000 00:00000000 00000000     0        0 4711 1 00000000c390c3ac 100 0 0 10 0";

    #[cfg(target_endian = "little")]
    #[test]
    fn addresses() {
        for (text, expected) in [
            ("0100007F:1F90", Some("127.0.0.1:8080")),
            ("0A01A8C0:01BB", Some("192.168.1.10:443")),
            ("00000000:0000", None),
            ("00000000000000000000000001000000:0050", Some("[::1]:80")),
            (
                "B80D0120000000000000000001000000:01BB",
                Some("[2001:db8::1]:443"),
            ),
            (
                "0000000000000000FFFF00000100007F:1F90",
                Some("127.0.0.1:8080"),
            ),
            ("00000000000000000000000000000000:0000", None),
        ] {
            let line = format!("   0: 00000000:07E8 {text} 01 {REST}");
            let expected = Row {
                inode: 4711,
                peer: expected.map(str::to_owned),
            };
            assert_eq!(decode_inet(&line), Some(expected), "{text}");
        }
    }

    #[test]
    fn lines_of_another_form_are_refused() {
        let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(decode_inet(header), None);
        for address in [
            "",
            "0100007F",
            "0100007F:",
            "+100007F:1F90",
            "0100007F:11F90",
            "éé00007F:1F90",
            "0100007F0100007F:1F90",
        ] {
            assert_eq!(decode_address(address), None, "{address:?}");
        }
        let waiting = format!("   0: 00000000:07E8 0100007F:1F90 06 {REST}").replace("4711", "0");
        assert_eq!(decode_inet(&waiting), None);
    }

    #[test]
    fn unix_sockets_have_the_path_that_they_are_bound_to() {
        let row = |inode, peer: Option<&str>| {
            Some(Row {
                inode,
                peer: peer.map(str::to_owned),
            })
        };
        let head = "00000000005401f0: 00000003 00000000 00000000 0001 03";
        for (line, expected) in [
            (format!("{head}    27"), row(27, None)),
            (
                format!("{head} 30514 /run/a b"),
                row(30514, Some("/run/a b")),
            ),
            (
                format!("{head} 30514 @abstract"),
                row(30514, Some("@abstract")),
            ),
            (
                "Num       RefCount Protocol Flags    Type St Inode Path".into(),
                None,
            ),
            (format!("{head} x"), None),
            (head.into(), None),
            (String::new(), None),
        ] {
            assert_eq!(decode_unix(&line), expected, "{line}");
        }
    }

    fn inode(of: &impl AsRawFd) -> u64 {
        let link = fs::read_link(format!("/proc/self/fd/{}", of.as_raw_fd())).expect("a link");
        let text = link.display().to_string();
        let digits = text
            .strip_prefix("socket:[")
            .and_then(|t| t.strip_suffix(']'));
        digits.and_then(|d| d.parse().ok()).expect("a socket")
    }

    #[test]
    fn our_own_connection_is_found_once() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = server.local_addr().expect("an address").to_string();
        let client = TcpStream::connect(&at).expect("a connection");
        let mut sockets = Sockets::default();
        let mut out = Vec::new();
        let own = std::process::id();
        for _ in 0..2 {
            sockets.meet(own, inode(&client), WORTH_NS);
            sockets.meet(own, inode(&server), WORTH_NS);
            sockets.resolve(KtimeNs(1), &mut out);
        }
        assert!(!sockets.has_new());
        out.sort_by_key(|record| format!("{record:?}").contains("None"));
        let fact = |inode, peer: Option<String>| {
            Record::Socket(SocketFact {
                inode,
                family: "tcp".into(),
                peer,
            })
        };
        assert_eq!(
            out,
            [fact(inode(&client), Some(at)), fact(inode(&server), None)]
        );
    }

    #[test]
    fn a_socket_that_is_nowhere_is_looked_for_a_few_times() {
        // Neither bound nor connected: in no table.
        // SAFETY: a new descriptor, which nobody else has.
        let apart = unsafe {
            OwnedFd::from_raw_fd(libc::socket(
                libc::AF_INET,
                libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
                0,
            ))
        };
        let mut sockets = Sockets::default();
        let mut out = Vec::new();
        sockets.meet(std::process::id(), inode(&apart), WORTH_NS);
        for try_ in 1..=TRIES {
            sockets.resolve(KtimeNs(u64::from(try_) * 1000 * SECOND), &mut out);
            assert_eq!(sockets.has_new(), try_ < TRIES);
            // Again within a second: not its turn, and no try.
            sockets.resolve(KtimeNs(u64::from(try_) * 1000 * SECOND), &mut out);
        }
        // One that is gone, as far as the process tells.
        sockets.meet(std::process::id(), u64::MAX, WORTH_NS);
        sockets.resolve(KtimeNs(u64::MAX / 4), &mut out);
        assert!(!sockets.has_new());
        // A process that never was.
        sockets.meet(5_000_000, 1, WORTH_NS);
        sockets.resolve(KtimeNs(u64::MAX / 2), &mut out);
        assert!(!sockets.has_new() && out.is_empty());
    }

    #[test]
    fn a_socket_that_was_hardly_waited_on_is_not_looked_up() {
        let mut sockets = Sockets::default();
        sockets.meet(1, 4711, WORTH_NS - 1);
        assert!(!sockets.has_new());
        sockets.meet(1, 4711, WORTH_NS);
        assert!(sockets.has_new());
    }

    #[test]
    fn no_more_than_so_many_are_remembered() {
        let mut sockets = Sockets::default();
        for inode in 1..10_000 {
            sockets.meet(1, inode, WORTH_NS);
        }
        assert_eq!(sockets.seen.len(), MOST);
        assert_eq!(sockets.order.len(), MOST);
        assert_eq!(sockets.new.len(), MOST);
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_decoded_or_refused(line in "([0-9]{1,3}: )?([0-9A-F]{0,33}:[0-9A-F]{0,5} ){0,3}.*") {
            let _ = (decode_inet(&line), decode_unix(&line));
        }

        #[test]
        fn any_table_ends(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..5000)) {
            let _ = rows(bytes.as_slice(), decode_inet).count();
            let _ = rows(bytes.as_slice(), decode_unix).count();
        }
    }
}
