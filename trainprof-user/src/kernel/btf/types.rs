//! The kernel's type information, as far as members, enumerators and names of typedefs go: one pass that notes where
//! each type lies, with no copy of any. General readers build every type, which takes ten times as long and 60 MB.
//!
//! Format: Documentation/bpf/btf.rst. Decoding is total: anything may be missing or contradict itself.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
/// Members of members that are looked into; the kernel nests unnamed ones three or four deep.
const DEEPEST: u32 = 16;

/// Kinds of types that matter here.
mod kind {
    pub const INT: u32 = 1;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
    pub const LAST: u32 = ENUM64;
}

/// Where a member lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From the beginning of the structure.
    pub bits: u32,
    /// Length of a bit field; 0: it is none.
    pub width: u32,
}

/// Type information of one kernel.
pub struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type lies in `types`, from type 1 on.
    starts: Vec<u32>,
    /// Structures, unions and enumerations by name, and typedefs, whose names are apart in C; the first of several.
    tags: HashMap<&'a [u8], u32>,
    typedefs: HashMap<&'a [u8], u32>,
}

impl<'a> Types<'a> {
    /// Reads a BTF file; an error says what is wrong with it.
    pub fn read(data: &'a [u8]) -> Result<Self, String> {
        let word = |at: usize| u32_at(data, at).ok_or_else(|| "it is too short".to_owned());
        let first = word(0)?;
        if first & 0xffff != u32::from(MAGIC) {
            return Err(format!(
                "it begins with {first:#010x}, which is not BTF of this byte order"
            ));
        }
        let header = word(4)? as usize;
        let part = |at: u32, len: u32| {
            let start = header.checked_add(at as usize)?;
            data.get(start..start.checked_add(len as usize)?)
        };
        let (types, strings) = part(word(8)?, word(12)?)
            .zip(part(word(16)?, word(20)?))
            .ok_or("its parts reach beyond its end")?;
        let mut read = Self {
            types,
            strings,
            starts: Vec::with_capacity(types.len() / 24),
            tags: HashMap::with_capacity(types.len() / 300),
            typedefs: HashMap::with_capacity(types.len() / 600),
        };
        read.index()?;
        Ok(read)
    }

    fn index(&mut self) -> Result<(), String> {
        let mut at = 0;
        while at < self.types.len() {
            let Some(head) = Head::at(self.types, at) else {
                return Err("its last type is cut off".to_owned());
            };
            let Some(more) = head.more() else {
                return Err(format!("it has types of the unknown kind {}", head.kind));
            };
            self.starts.push(at as u32);
            let names = match head.kind {
                kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 => Some(&mut self.tags),
                kind::TYPEDEF => Some(&mut self.typedefs),
                _ => None,
            };
            if let Some(names) = names
                && head.name != 0
                && let Some(name) = text(self.strings, head.name)
            {
                names.entry(name).or_insert(self.starts.len() as u32);
            }
            at += Head::BYTES + more;
        }
        Ok(())
    }

    /// Whether there is a typedef of this name.
    pub fn has_typedef(&self, name: &str) -> bool {
        self.typedefs.contains_key(name.as_bytes())
    }

    /// A type by its name; a typedef's where nothing else has it.
    fn named(&self, name: &str) -> Option<u32> {
        let name = name.as_bytes();
        self.tags
            .get(name)
            .or_else(|| self.typedefs.get(name))
            .copied()
    }

    /// Where `path` lies in a structure: names with dots between them, through members without a name.
    pub fn member(&self, structure: &str, path: &str) -> Option<Place> {
        let mut of = self.named(structure)?;
        let mut place = Place { bits: 0, width: 0 };
        for name in path.split('.') {
            let (found, type_) = self.member_of(of, name.as_bytes(), DEEPEST)?;
            place = Place {
                bits: place.bits.checked_add(found.bits)?,
                width: found.width,
            };
            of = type_;
        }
        Some(place)
    }

    /// A member by its name, and its type.
    fn member_of(&self, of: u32, name: &[u8], deepest: u32) -> Option<(Place, u32)> {
        let (head, at) = self.plain(of)?;
        if !matches!(head.kind, kind::STRUCT | kind::UNION) || deepest == 0 {
            return None;
        }
        (0..head.count).find_map(|n| {
            let member = at + Head::BYTES + 12 * n;
            let own = u32_at(self.types, member)?;
            let type_ = u32_at(self.types, member + 4)?;
            let offset = u32_at(self.types, member + 8)?;
            let place = if head.flag {
                Place {
                    bits: offset & 0xff_ffff,
                    width: offset >> 24,
                }
            } else {
                Place {
                    bits: offset,
                    width: 0,
                }
            };
            if own != 0 {
                return (self.name(own)? == name).then_some((place, type_));
            }
            let (inner, type_) = self.member_of(type_, name, deepest - 1)?;
            let bits = place.bits.checked_add(inner.bits)?;
            Some((
                Place {
                    bits,
                    width: inner.width,
                },
                type_,
            ))
        })
    }

    /// Value of an enumerator of up to 32 bits.
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        let (head, at) = self.plain(self.named(enumeration)?)?;
        if head.kind != kind::ENUM {
            return None;
        }
        (0..head.count).find_map(|n| {
            let entry = at + Head::BYTES + 8 * n;
            let own = self.name(u32_at(self.types, entry)?)?;
            (own == name.as_bytes()).then(|| u32_at(self.types, entry + 4))?
        })
    }

    /// A type behind typedefs and qualifiers, and where it lies.
    fn plain(&self, mut id: u32) -> Option<(Head, usize)> {
        for _ in 0..DEEPEST {
            let at = *self.starts.get((id as usize).checked_sub(1)?)? as usize;
            let head = Head::at(self.types, at)?;
            match head.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = head.size_or_type
                }
                _ => return Some((head, at)),
            }
        }
        None
    }

    fn name(&self, at: u32) -> Option<&'a [u8]> {
        text(self.strings, at)
    }
}

/// The text at a place of the strings, without its NUL.
fn text(strings: &[u8], at: u32) -> Option<&[u8]> {
    let rest = strings.get(at as usize..)?;
    Some(&rest[..rest.iter().position(|byte| *byte == 0)?])
}

/// The part that all types have (`struct btf_type`).
struct Head {
    name: u32,
    kind: u32,
    count: usize,
    flag: bool,
    size_or_type: u32,
}

impl Head {
    const BYTES: usize = 12;

    fn at(types: &[u8], at: usize) -> Option<Self> {
        let info = u32_at(types, at + 4)?;
        Some(Self {
            name: u32_at(types, at)?,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            flag: info >> 31 != 0,
            size_or_type: u32_at(types, at + 8)?,
        })
    }

    /// Bytes that follow it; `None`: nobody knows.
    fn more(&self) -> Option<usize> {
        match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => Some(4),
            kind::ARRAY => Some(12),
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => Some(12 * self.count),
            kind::ENUM | kind::FUNC_PROTO => Some(8 * self.count),
            1..=kind::LAST => Some(0),
            _ => None,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use btfparse::{Error, ErrorKind, Offset, Readable, TypeInformation, TypeVariant};
    use trainprof_common::offsets::Offsets;

    use super::*;

    struct Bytes<'a>(&'a [u8]);

    impl Readable for Bytes<'_> {
        fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
            let start = offset as usize;
            let source = self.0.get(start..start + buffer.len());
            buffer.copy_from_slice(source.ok_or(Error::new(ErrorKind::IOError, "end"))?);
            Ok(())
        }
    }

    /// A small file: two structures, one of them with members without a name, an enumeration and a typedef.
    fn small() -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |text: &str| {
            let at = strings.len() as u32;
            strings.extend(text.bytes().chain([0]));
            at
        };
        let word = |kind: u32, count: u32, flag: u32| flag << 31 | kind << 24 | count;
        let (inner, outer, alias) = (name("inner"), name("outer"), name("alias"));
        let (a, b, c) = (name("a"), name("b"), name("c"));
        let (colour, red) = (name("colour"), name("red"));
        let types: Vec<u32> = [
            // 1: int
            vec![0, word(1, 0, 0), 4, 32],
            // 2: struct inner { int a; int b; }
            vec![inner, word(4, 2, 0), 8, a, 1, 0, b, 1, 32],
            // 3: const struct inner; 4: typedef of it
            vec![0, word(10, 0, 0), 2],
            vec![alias, word(8, 0, 0), 3],
            // 5: struct { alias c; }, without a name
            vec![0, word(4, 1, 0), 8, c, 4, 0],
            // 6: struct outer { int a: 3 at bit 5; struct 5, at bit 64; }
            vec![outer, word(4, 2, 1), 16, a, 1, 3 << 24 | 5, 0, 5, 64],
            // 7: enum colour { red = 7 }
            vec![colour, word(6, 1, 0), 4, red, 7],
        ]
        .concat();
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
        let header = [
            u32::from(MAGIC) | 1 << 16,
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            strings.len() as u32,
        ];
        let header: Vec<u8> = header.into_iter().flat_map(u32::to_ne_bytes).collect();
        [header, types, strings].concat()
    }

    #[test]
    fn members_enumerators_and_names() {
        let data = small();
        let types = Types::read(&data).expect("BTF");
        let at = |bits, width| Some(Place { bits, width });
        for (structure, path, expected) in [
            ("inner", "b", at(32, 0)),
            ("outer", "a", at(5, 3)),
            ("outer", "c", at(64, 0)),
            ("outer", "c.b", at(96, 0)),
            ("outer", "b", None),
            ("outer", "a.b", None),
            ("outer", "", None),
            ("alias", "b", at(32, 0)),
            ("colour", "red", None),
            ("nothing", "a", None),
        ] {
            assert_eq!(
                types.member(structure, path),
                expected,
                "{structure}.{path}"
            );
        }
        assert_eq!(types.enumerator("colour", "red"), Some(7));
        assert_eq!(types.enumerator("colour", "blue"), None);
        assert_eq!(types.enumerator("inner", "a"), None);
        assert!(types.has_typedef("alias") && !types.has_typedef("inner"));
    }

    #[test]
    fn what_is_no_btf_is_refused() {
        let good = small();
        for len in 0..good.len() {
            assert!(Types::read(&good[..len]).is_err(), "{len} bytes");
        }
        let mut other = good.clone();
        other[0] ^= 1;
        assert!(Types::read(&other).is_err());
    }

    #[test]
    fn this_kernel_as_another_reader_sees_it() {
        let Ok(data) = std::fs::read(super::super::VMLINUX) else {
            eprintln!("left out: this host has no {}", super::super::VMLINUX);
            return;
        };
        let other = TypeInformation::new(&Bytes(&data)).expect("BTF");
        let own = Types::read(&data).expect("BTF");
        let (mut same, mut missing) = (0, 0);
        Offsets::resolve(
            |structure, path| {
                let id = other.id_of(structure);
                let theirs = id.and_then(|id| other.offset_of(id, path).ok());
                let theirs = theirs.map(|(_, offset)| match offset {
                    Offset::ByteOffset(at) => (at * 8, 0),
                    Offset::BitOffsetAndSize(at, width) => (at, width),
                });
                let ours = own.member(structure, path).map(|p| (p.bits, p.width));
                assert_eq!(ours, theirs, "{structure}.{path}");
                same += usize::from(ours.is_some());
                ours.map(|(bits, _)| bits / 8)
            },
            |_, _, _| missing += 1,
        );
        assert!(same > 30 && missing < 8, "{same} found, {missing} missing");
        let iowait = own.member("task_struct", "in_iowait").expect("a bit field");
        let theirs = other.offset_of(other.id_of("task_struct").expect("it"), "in_iowait");
        assert_eq!(
            format!("{:?}", theirs.expect("a bit field").1),
            format!("BitOffsetAndSize({}, {})", iowait.bits, iowait.width)
        );
        let flags = other.from_id(other.id_of("pageflags").expect("it"));
        let Some(TypeVariant::Enum(flags)) = flags else {
            panic!("no enumeration");
        };
        for value in flags.named_value_list() {
            let ours = own.enumerator("pageflags", &value.name).expect("it");
            let theirs = match value.value {
                btfparse::Integer32Value::Signed(v) => v as u32,
                btfparse::Integer32Value::Unsigned(v) => v,
            };
            assert_eq!(ours, theirs, "{}", value.name);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            changes in proptest::collection::vec((0..400_usize, proptest::prelude::any::<u8>()), 0..8)
        ) {
            let mut data = small();
            for (at, byte) in changes {
                let len = data.len();
                data[at % len] = byte;
            }
            if let Ok(types) = Types::read(&data) {
                for path in ["a", "c.b", "c.a"] {
                    let _ = (types.member("outer", path), types.member("inner", path));
                }
                let _ = types.enumerator("colour", "red");
            }
        }
    }
}
