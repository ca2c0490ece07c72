//! The few raw `bpf()` calls with which a host is asked what it allows, before anything is loaded.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// Commands of `enum bpf_cmd` in include/uapi/linux/bpf.h.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
/// From `enum bpf_map_type` there.
const BPF_MAP_TYPE_ARRAY: u32 = 2;

/// What became of trying `bpf()`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum BpfCall {
    /// A map could be made.
    Works,
    /// The kernel has no `bpf()` (built without CONFIG_BPF_SYSCALL).
    NotBuiltIn,
    /// The call does not reach its handler, or is refused there to all who lack capabilities: `errno`.
    Blocked(i32),
    /// The call is answered, and making a map is refused: `errno`.
    NoMaps(i32),
}

/// Tries `bpf()` twice, without leaving anything behind: a question about a descriptor that does not exist, and a
/// map of one number that is closed at once.
pub(super) fn try_call() -> BpfCall {
    match create_array_map() {
        Ok(_map) => BpfCall::Works,
        Err(map_error) => decide(errno(&ask_about_no_descriptor()), errno(&map_error)),
    }
}

/// The question asks for no capability (since 6.0), and a handler that it reaches answers EBADF or EBADFD.
fn decide(question: i32, map: i32) -> BpfCall {
    match question {
        libc::ENOSYS => BpfCall::NotBuiltIn,
        libc::EPERM | libc::EACCES => BpfCall::Blocked(question),
        _ => BpfCall::NoMaps(map),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The beginning of `union bpf_attr`. The kernel takes any length; what lies behind the members of a command must be zero.
type Attribute = [u64; 8];

/// Two 32-bit members in the order that memory has them.
fn pair(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Makes an array map of one 8-byte value.
pub(crate) fn create_array_map() -> io::Result<OwnedFd> {
    let mut attribute = Attribute::default();
    let (key_size, value_size, entries) = (4, 8, 1);
    attribute[0] = pair(BPF_MAP_TYPE_ARRAY, key_size);
    attribute[1] = pair(value_size, entries);
    // SAFETY: BPF_MAP_CREATE follows no pointer in an attribute whose other members are zero.
    let fd = unsafe { call(BPF_MAP_CREATE, &mut attribute) }?;
    let fd = i32::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: the kernel has just opened this descriptor (with close-on-exec) for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn ask_about_no_descriptor() -> io::Error {
    let mut attribute = Attribute::default();
    attribute[0] = pair(u32::MAX, 0);
    // SAFETY: the command fails at its descriptor; the only pointer in the attribute is null, of length 0.
    match unsafe { call(BPF_OBJ_GET_INFO_BY_FD, &mut attribute) } {
        Ok(_) => io::Error::from_raw_os_error(0),
        Err(error) => error,
    }
}

/// The value of the only entry of such a map.
#[cfg(test)]
pub(crate) fn look_up(map: &OwnedFd) -> io::Result<u64> {
    use std::os::fd::AsRawFd;

    const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
    let (key, mut value) = (0u32, u64::MAX);
    let mut attribute = Attribute::default();
    attribute[0] = pair(map.as_raw_fd() as u32, 0);
    attribute[1] = &raw const key as u64;
    attribute[2] = &raw mut value as u64;
    // SAFETY: key and value live until the call returns and have the sizes that the map was made with.
    unsafe { call(BPF_MAP_LOOKUP_ELEM, &mut attribute) }?;
    Ok(value)
}

/// # Safety
/// Pointers in the attribute must be good for what `bpf(2)` says of the command.
unsafe fn call(command: libc::c_long, attribute: &mut Attribute) -> io::Result<libc::c_long> {
    // SAFETY: the attribute is ours for the length that is passed; the caller answers for what it points to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attribute.as_mut_ptr(),
            size_of::<Attribute>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_answers_tell_why_there_are_no_maps() {
        use libc::{EBADF, EBADFD, ENOMEM, ENOSYS, EPERM};
        let cases = [
            (ENOSYS, ENOSYS, BpfCall::NotBuiltIn),
            (EPERM, EPERM, BpfCall::Blocked(EPERM)),
            (EBADF, EPERM, BpfCall::NoMaps(EPERM)),
            (EBADFD, ENOMEM, BpfCall::NoMaps(ENOMEM)),
        ];
        for (question, map, expected) in cases {
            assert_eq!(decide(question, map), expected, "{question} {map}");
        }
    }

    #[test]
    fn pairs_lie_in_memory_as_two_words() {
        assert_eq!(pair(1, 2).to_ne_bytes()[..4], 1u32.to_ne_bytes());
        assert_eq!(pair(1, 2).to_ne_bytes()[4..], 2u32.to_ne_bytes());
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_no_success() {
        assert_ne!(errno(&ask_about_no_descriptor()), 0);
    }
}
