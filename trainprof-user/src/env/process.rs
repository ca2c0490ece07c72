//! One process: who it is, what it was started as, and the container it is in.

use std::{fs, io, path::PathBuf};

use procfs::process::{Process, Stat, StatFlags};
use serde::{Deserialize, Serialize};

use super::cgroup::{CgroupFacts, Groups};
use super::{EnvError, clock, read_text};
use crate::time::KtimeNs;

/// Arguments kept of a command line.
pub const MAX_ARGUMENTS: usize = 64;
/// Bytes kept of each argument.
pub const MAX_ARGUMENT_BYTES: usize = 256;
/// What stands in the place of a secret.
const MASK: &str = "***";

/// What is known of one process. Its identity is (`pid`, `start_time_ticks`): numbers are used again.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct ProcessFacts {
    /// The process's number in our own pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot (`starttime` of `proc_pid_stat(5)`).
    pub start_time_ticks: u64,
    /// Its parent; 0 for a process whose parent is outside our pid namespace.
    pub ppid: u32,
    /// Effective user id.
    pub uid: u32,
    /// The name of its first thread, at most 15 bytes.
    pub comm: String,
    /// The command line: at most [`MAX_ARGUMENTS`] arguments of at most [`MAX_ARGUMENT_BYTES`] bytes, with what
    /// looks like a secret replaced by `***`. Empty for kernel threads and for processes that have ended but
    /// were not waited for.
    pub command: Vec<String>,
    /// The program's file; `None` where it may not be read (`ptrace(2)`, PTRACE_MODE_READ_FSCREDS).
    pub exe: Option<String>,
    /// Its working directory; `None` as for `exe`.
    pub cwd: Option<String>,
    /// When it started, in seconds since 1970. Boot time is known to the second only, so this is within 1 s.
    pub started_unix: Option<f64>,
    /// How many threads it has.
    pub threads: u32,
    /// Its number in each pid namespace from ours inwards: the last is what it takes itself to be.
    pub nspid: Option<Vec<u32>>,
    /// Its control groups, with the container, pod or batch job.
    pub cgroup: Option<CgroupFacts>,
}

impl ProcessFacts {
    /// Reads a process, and its control groups as [`Groups::read`].
    ///
    /// # Errors
    /// When there is no such process, or it ended meanwhile (see [`EnvError::is_gone`]).
    pub fn read(now: KtimeNs, pid: u32, groups: &mut Groups) -> Result<ProcessFacts, EnvError> {
        let failed = |source| EnvError::Process { pid, source };
        let process = open(pid)?;
        let stat = process.stat().map_err(failed)?;
        let status = process.status().map_err(failed)?;
        let link =
            |path: io::Result<PathBuf>| path.ok().map(|path| path.to_string_lossy().into_owned());
        let facts = ProcessFacts {
            pid,
            start_time_ticks: stat.starttime,
            ppid: u32::try_from(stat.ppid).unwrap_or(0),
            uid: status.euid,
            comm: stat.comm.clone(),
            command: command(pid),
            exe: link(fs::read_link(shared(pid, "exe"))),
            cwd: link(fs::read_link(shared(pid, "cwd"))),
            started_unix: procfs::boot_time_secs().ok().map(|boot| {
                boot as f64 + stat.starttime as f64 / procfs::ticks_per_second() as f64
            }),
            threads: u32::try_from(stat.num_threads).unwrap_or(0),
            nspid: status.nspid.and_then(|pids| {
                pids.into_iter()
                    .map(|pid| u32::try_from(pid).ok())
                    .collect()
            }),
            cgroup: groups.read(now, pid).ok(),
        };
        // Files above were opened by number: make sure that they were all of this process.
        if start_time(pid)? != facts.start_time_ticks {
            return Err(failed(procfs::ProcError::NotFound(None)));
        }
        Ok(facts)
    }

    /// Whether it had begun by then. If not, the number was another process's at that time.
    pub fn was_there(&self, at: KtimeNs) -> bool {
        // Beginnings are told by the clock that goes on while the host sleeps, rounded down to a tick.
        let slept = clock::since_boot_ns().saturating_sub(clock::now().0);
        self.start_time_ticks.saturating_mul(tick_ns()) <= at.0.saturating_add(slept)
    }
}

/// The command line, bounded and masked as [`ProcessFacts::command`]; empty also where it cannot be read.
pub fn command(pid: u32) -> Vec<String> {
    decode_command(&read_text(&shared(pid, "cmdline"), 256 << 10).unwrap_or_default())
}

/// Threads that are tried by [`shared_dir`].
const MOST_TRIED: usize = 8;

/// Where /proc tells what the threads of a process share: its memory, files, working directory, mounts. In its own directory, or,
/// where its first thread has ended and others go on (`pthread_exit(3)` in `main`), in that of one of these: an ended thread
/// has none of it any more (`exit_mm`, `exit_files`, `exit_fs`, kernel/exit.c).
pub fn shared_dir(pid: u32) -> PathBuf {
    let own = PathBuf::from(format!("/proc/{pid}"));
    // Whoever may not read it has it.
    let has_memory = |dir: &PathBuf| {
        let program = fs::read_link(dir.join("exe"));
        program.map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |_| true)
    };
    if has_memory(&own) {
        return own;
    }
    let tasks = fs::read_dir(own.join("task")).into_iter().flatten();
    let mut others = tasks.flatten().map(|task| task.path()).take(MOST_TRIED);
    others.find(has_memory).unwrap_or(own)
}

/// A file in [`shared_dir`].
pub fn shared(pid: u32, name: &str) -> PathBuf {
    shared_dir(pid).join(name)
}

/// What a thread is called in the innermost namespace of process ids that it lives in: its own number where that is ours. `None` when
/// it has ended.
pub fn called_inside(pid: u32, tid: u32) -> Option<u32> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    let task = process.task_from_tid(i32::try_from(tid).ok()?).ok()?;
    let status = task.status().ok()?;
    status
        .nspid?
        .last()
        .and_then(|last| u32::try_from(*last).ok())
}

/// When a process started, in clock ticks since boot: with the pid, its identity.
///
/// # Errors
/// When there is no such process.
pub fn start_time(pid: u32) -> Result<u64, EnvError> {
    Ok(stat(pid)?.starttime)
}

/// For how long a process has been there, in nanoseconds; to a clock tick.
///
/// # Errors
/// When there is no such process.
pub fn age_ns(pid: u32) -> Result<u64, EnvError> {
    Ok(clock::since_boot_ns().saturating_sub(start_time(pid)?.saturating_mul(tick_ns())))
}

fn tick_ns() -> u64 {
    1_000_000_000 / procfs::ticks_per_second()
}

/// Whether this is a thread of the kernel: PF_KTHREAD in the flags of `proc_pid_stat(5)`. Such processes have no
/// program, and nothing of a training job happens in them on its own account.
///
/// # Errors
/// When there is no such process.
pub fn is_kernel_thread(pid: u32) -> Result<bool, EnvError> {
    let flags = StatFlags::from_bits_truncate(stat(pid)?.flags);
    Ok(flags.contains(StatFlags::PF_KTHREAD))
}

fn open(pid: u32) -> Result<Process, EnvError> {
    // Numbers of processes are at most 2^22 (PID_MAX_LIMIT).
    let number = i32::try_from(pid).unwrap_or(i32::MAX);
    Process::new(number).map_err(|source| EnvError::Process { pid, source })
}

fn stat(pid: u32) -> Result<Stat, EnvError> {
    open(pid)?
        .stat()
        .map_err(|source| EnvError::Process { pid, source })
}

/// Splits a command line at its zero bytes, bounds it and masks its secrets. A process that has overwritten its
/// arguments with a title has one argument, with spaces or zero bytes after it.
fn decode_command(cmdline: &str) -> Vec<String> {
    let trimmed = cmdline.trim_end_matches(['\0', ' ']);
    if trimmed.is_empty() {
        return Vec::new();
    }
    let mut masked_next = false;
    let mut command = Vec::new();
    for argument in trimmed.split('\0').take(MAX_ARGUMENTS) {
        let argument = if masked_next && !argument.starts_with('-') {
            masked_next = false;
            MASK.to_owned()
        } else {
            masked_next = is_secret_option(argument);
            mask(argument)
        };
        command.push(shorten(argument));
    }
    command
}

/// Cuts at a character's edge.
fn shorten(mut argument: String) -> String {
    if argument.len() > MAX_ARGUMENT_BYTES {
        const DOTS: &str = "…";
        let end = (0..=MAX_ARGUMENT_BYTES - DOTS.len())
            .rev()
            .find(|&at| argument.is_char_boundary(at));
        argument.truncate(end.unwrap_or(0));
        argument.push_str(DOTS);
    }
    argument
}

/// `--api-key` alone: the secret is the next argument.
fn is_secret_option(argument: &str) -> bool {
    argument.starts_with('-') && !argument.contains(['=', ' ']) && names_secret(argument)
}

/// Masks what follows a secret's name and a `=` or `:`, to the end of the argument (where a value ends cannot be
/// told), the password of a URL, and words that have the form of well-known tokens.
fn mask(argument: &str) -> String {
    for (at, separator) in argument.match_indices(['=', ':']) {
        let before = argument[..at].trim_end_matches(['"', '\'', ' ']);
        let name_start = before
            .rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')))
            .map_or(0, |found| {
                found + before[found..].chars().next().map_or(1, char::len_utf8)
            });
        let value = &argument[at + separator.len()..];
        if !value.is_empty() && names_secret(&before[name_start..]) {
            let kept = &argument[..at + separator.len()];
            return mask_tokens(&mask_url_password(kept)) + MASK;
        }
    }
    mask_tokens(&mask_url_password(argument))
}

/// Whether a name such as `--hub_api-key` or `HF_TOKEN` is that of a secret, by its words. `tokenizer`,
/// `max_tokens` and `key` alone are not.
fn names_secret(name: &str) -> bool {
    const WORDS: [&str; 17] = [
        "token",
        "password",
        "passwd",
        "passphrase",
        "pwd",
        "pass",
        "secret",
        "secrets",
        "apikey",
        "accesskey",
        "secretkey",
        "credential",
        "credentials",
        "auth",
        "authorization",
        "bearer",
        "authtoken",
    ];
    const KEY_KINDS: [&str; 7] = [
        "api",
        "access",
        "secret",
        "private",
        "account",
        "encryption",
        "signing",
    ];
    let name = name.to_ascii_lowercase();
    let mut previous = "";
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| {
            let found = WORDS.contains(&word) || (word == "key" && KEY_KINDS.contains(&previous));
            previous = word;
            found
        })
}

/// `scheme://user:password@host` to `scheme://***@host`.
fn mask_url_password(argument: &str) -> String {
    let mut out = String::with_capacity(argument.len());
    let mut rest = argument;
    while let Some(at) = rest.find("://") {
        let (head, tail) = rest.split_at(at + 3);
        out.push_str(head);
        let authority = &tail[..tail
            .find(['/', '?', '#', ' ', '"', '\''])
            .unwrap_or(tail.len())];
        rest = match authority.rfind('@') {
            Some(sign) => {
                out.push_str(MASK);
                &tail[sign..]
            }
            None => tail,
        };
    }
    out.push_str(rest);
    out
}

/// Words that begin as the tokens of Hugging Face, GitHub, OpenAI, AWS, Slack and Google do and are long enough.
fn mask_tokens(argument: &str) -> String {
    const SIGNS: [&str; 9] = [
        "hf_",
        "ghp_",
        "github_pat_",
        "gho_",
        "sk-",
        "AKIA",
        "ASIA",
        "xoxb-",
        "AIza",
    ];
    let mut out = String::with_capacity(argument.len());
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut rest = argument;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let secret = word.len() >= 20 && SIGNS.iter().any(|sign| word.starts_with(sign));
        out.push_str(if secret { MASK } else { word });
        let between = tail.find(is_part).unwrap_or(tail.len());
        out.push_str(&tail[..between]);
        rest = &tail[between..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        let cases: [(&[&str], &[&str]); 17] = [
            (&["train", "--token=abc"], &["train", "--token=***"]),
            (
                &["--hub-api_key", "abc", "--lr", "1"],
                &["--hub-api_key", "***", "--lr", "1"],
            ),
            (&["HF_TOKEN=abc", "python"], &["HF_TOKEN=***", "python"]),
            (&["password=x y z"], &["password=***"]),
            (
                &["--header", "Authorization: Bearer abc"],
                &["--header", "Authorization:***"],
            ),
            (&["{\"secret\": \"abc\"}"], &["{\"secret\":***"]),
            (&["s3://user:pw@host/p", "x"], &["s3://***@host/p", "x"]),
            (
                &["redis://:pw@h:1 http://h/a@b"],
                &["redis://***@h:1 http://h/a@b"],
            ),
            (&["https://u:pw@h/?token=x"], &["https://***@h/?token=***"]),
            (&["login hf_abcdefghijklmnopqrstuv!"], &["login ***!"]),
            (
                &["--aws_secret_access_key=x"],
                &["--aws_secret_access_key=***"],
            ),
            // These are not secrets.
            (
                &["--tokenizer=gpt2", "--max_tokens", "512"],
                &["--tokenizer=gpt2", "--max_tokens", "512"],
            ),
            (
                &["--key", "images", "--author", "me"],
                &["--key", "images", "--author", "me"],
            ),
            (&["--token", "--lr", "1"], &["--token", "--lr", "1"]),
            (&["hf_short", "sk-learn"], &["hf_short", "sk-learn"]),
            (&["--password="], &["--password="]),
            (&["é=ü", "日本:password=x"], &["é=ü", "日本:password=***"]),
        ];
        for (arguments, expected) in cases {
            let line = arguments.join("\0") + "\0";
            assert_eq!(decode_command(&line), expected, "{arguments:?}");
        }
    }

    #[test]
    fn command_lines_are_bounded_at_the_edge_of_a_character() {
        let many = "x\0".repeat(MAX_ARGUMENTS + 1);
        assert_eq!(decode_command(&many).len(), MAX_ARGUMENTS);
        for long in [
            "é".repeat(200),
            "x".repeat(300),
            "x".to_owned() + &"日".repeat(100),
        ] {
            let command = decode_command(&long);
            assert!(command[0].len() <= MAX_ARGUMENT_BYTES && command[0].ends_with('…'));
            assert!(command[0].len() > MAX_ARGUMENT_BYTES - 4);
        }
        let exact = "x".repeat(MAX_ARGUMENT_BYTES);
        assert_eq!(decode_command(&exact), [exact]);
    }

    #[test]
    fn titles_and_empty_command_lines() {
        let cases: [(&str, &[&str]); 4] = [
            ("", &[]),
            ("\0\0", &[]),
            ("nginx: worker process\0\0\0\0", &["nginx: worker process"]),
            ("a\0\0b\0", &["a", "", "b"]),
        ];
        for (line, expected) in cases {
            assert_eq!(decode_command(line), expected, "{line:?}");
        }
    }

    fn read(pid: u32) -> Result<ProcessFacts, EnvError> {
        ProcessFacts::read(clock::now(), pid, &mut Groups::default())
    }

    #[test]
    fn we_can_read_ourselves() {
        let pid = std::process::id();
        let facts = read(pid).expect("our own");
        assert_eq!(
            (facts.pid, facts.start_time_ticks),
            (pid, start_time(pid).expect("our own"))
        );
        assert!(facts.was_there(clock::now()) && !facts.was_there(KtimeNs(0)));
        assert!(!is_kernel_thread(pid).expect("our own"));
        assert!(
            facts.threads >= 1
                && !facts.command.is_empty()
                && facts.exe.is_some()
                && facts.cwd.is_some()
        );
        assert_eq!(
            facts.nspid.as_ref().and_then(|pids| pids.first()),
            Some(&pid)
        );
        let now = std::time::UNIX_EPOCH
            .elapsed()
            .expect("after 1970")
            .as_secs_f64();
        let started = facts.started_unix.expect("a boot time");
        assert!(started <= now + 1.0, "{started} {now}");
        let bytes = postcard::to_stdvec(&facts).expect("encodes");
        assert_eq!(
            postcard::from_bytes::<ProcessFacts>(&bytes).expect("decodes"),
            facts
        );
    }

    #[test]
    fn an_ended_process_is_gone() {
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("true(1) exists");
        child.wait().expect("ends");
        assert!(read(child.id()).expect_err("ended").is_gone());
        assert!(
            is_kernel_thread(u32::MAX)
                .expect_err("no such number")
                .is_gone()
        );
    }

    #[test]
    fn kthreadd_is_a_kernel_thread() {
        // In a pid namespace of its own, 2 is any process or none.
        match stat(2) {
            Ok(stat) if stat.comm == "kthreadd" => {
                assert!(is_kernel_thread(2).expect("read before"))
            }
            _ => eprintln!("skipped: this pid namespace does not show kthreadd"),
        }
    }

    proptest::proptest! {
        #[test]
        fn any_command_line_is_bounded(line in "(token|key|api|://|[@=: \"]|hf_|[a-zé]|-|\0){0,400}") {
            let command = decode_command(&line);
            assert!(command.len() <= MAX_ARGUMENTS);
            assert!(command.iter().all(|argument| argument.len() <= MAX_ARGUMENT_BYTES));
        }

        #[test]
        fn no_value_of_a_secret_survives(value in "[a-z0-9]{12,40}", name in "--(hub[-_])?(token|password|api[-_]key)") {
            let given = format!("python\0{name}={value}\0{name}\0{value}\0");
            assert!(!decode_command(&given).concat().contains(&value));
        }
    }
}
