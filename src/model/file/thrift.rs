//! Checks the metadata of a Parquet file before the Parquet reader trusts them.
//!
//! The reader has three weak points. It reserves memory for as many children or dictionary values as a file claims to have. It
//! follows a schema to any depth. It loops over lists whose entries take no bytes. So this module walks the metadata first,
//! byte by byte. It passes them on only if they consist of the structs below and their fields have the types of the format. The
//! reader assumes these types, so both read the same content. Of the pages, only plain ones are accepted.
//!
//! Metadata are in Thrift's compact protocol. A struct is a list of fields. Each field starts with one byte: the difference
//! between its number and that of the field before, and its type. A zero byte ends the struct.
//!
//! A sparse file may have holes, which read as zeros and take no room on the disk. Nothing that the walk accepts can lie in a
//! hole: text holds no NUL, each entry of a list of structs has a field, and all other lists are short. So the walk stops where
//! a hole begins, and everything that was read before is real content on the disk.

use std::io::Read;

use Shape::{Bool, Byte, Int, Kept, List, Raw, Struct, Text, Zero};

/// What may stand at a place in the metadata.
enum Shape {
    /// The value is in the type of its field.
    Bool,
    Byte,
    Int,
    /// An integer that the walk keeps.
    Kept,
    /// The integer 0.
    Zero,
    /// Bytes without a zero.
    Text,
    /// A few bytes of any kind.
    Raw,
    List(&'static Shape),
    /// Fields by their numbers. Any of them may be missing.
    Struct(&'static [(u8, Shape)]),
}

/// The most bytes of a [`Raw`], and the most entries of a list that holds no structs (such as a column's path or encodings).
const SHORT: usize = 64;

const EMPTY: Shape = Struct(&[]);
const TIME: Shape = Struct(&[(1, Bool), (2, Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]))]);
const LOGICAL_TYPE: Shape = Struct(&[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, Int), (2, Int)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Struct(&[(1, Byte), (2, Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
]);
/// The walk keeps the number of children.
const SCHEMA_ELEMENT: Shape =
    Struct(&[(1, Int), (2, Int), (3, Int), (4, Text), (5, Kept), (6, Int), (7, Int), (8, Int), (9, Int), (10, LOGICAL_TYPE)]);
const KEY_VALUE: Shape = Struct(&[(1, Text), (2, Text)]);
const STATISTICS: Shape = Struct(&[(1, Raw), (2, Raw), (3, Int), (4, Int), (5, Raw), (6, Raw), (7, Bool), (8, Bool)]);
const SIZE_STATISTICS: Shape = Struct(&[(1, Int), (2, List(&Int)), (3, List(&Int))]);
const PAGE_ENCODING: Shape = Struct(&[(1, Int), (2, Int), (3, Int)]);
const COLUMN: Shape = Struct(&[
    (1, Int),
    (2, List(&Int)),
    (3, List(&Text)),
    (4, Int),
    (5, Int),
    (6, Int),
    (7, Int),
    (8, List(&KEY_VALUE)),
    (9, Int),
    (10, Int),
    (11, Int),
    (12, STATISTICS),
    (13, List(&PAGE_ENCODING)),
    (14, Int),
    (15, Int),
    (16, SIZE_STATISTICS),
]);
const COLUMN_CHUNK: Shape = Struct(&[(1, Text), (2, Int), (3, COLUMN), (4, Int), (5, Int), (6, Int), (7, Int)]);
const SORTING_COLUMN: Shape = Struct(&[(1, Int), (2, Bool), (3, Bool)]);
const ROW_GROUP: Shape =
    Struct(&[(1, List(&COLUMN_CHUNK)), (2, Int), (3, Int), (4, List(&SORTING_COLUMN)), (5, Int), (6, Int), (7, Int)]);
const COLUMN_ORDER: Shape = Struct(&[(1, EMPTY), (2, EMPTY)]);
const FILE: Shape = Struct(&[
    (1, Int),
    (2, List(&SCHEMA_ELEMENT)),
    (3, Int),
    (4, List(&ROW_GROUP)),
    (5, List(&KEY_VALUE)),
    (6, Text),
    (7, List(&COLUMN_ORDER)),
]);
/// A data page of plain values. The walk keeps its number of bytes and its number of values.
const PAGE: Shape =
    Struct(&[(1, Zero), (2, Int), (3, Kept), (4, Int), (5, Struct(&[(1, Kept), (2, Zero), (3, Int), (4, Int)]))]);

/// Thrift's code for the type of a struct.
const STRUCT: u8 = 12;
/// The most groups in a schema. This limits its depth too. A model has 3 groups: the root, a list column, and the group of its
/// entries.
const MAX_GROUPS: usize = 32;
/// Bytes that are read at a time.
const STEP: usize = 1 << 16;

/// A source of bytes.
trait Source {
    /// The next `len` bytes: at most [`STEP`]. `None` if there are fewer.
    fn take(&mut self, len: usize) -> Option<&[u8]>;
}

impl Source for &[u8] {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let (taken, rest) = self.split_at_checked(len)?;
        *self = rest;
        Some(taken)
    }
}

/// A footer. It is read only as far as the walk has found it sound.
struct Footer<R> {
    source: R,
    /// Bytes of the footer that have not been read yet.
    unread: usize,
    read: Vec<u8>,
    /// Bytes of `read` that the walk has taken.
    taken: usize,
    error: Option<std::io::Error>,
}

impl<R: Read> Footer<R> {
    /// Reads on until `len` bytes can be taken.
    fn fill(&mut self, len: usize) -> Option<()> {
        while self.read.len() - self.taken < len {
            let (start, more) = (self.read.len(), self.unread.min(STEP));
            let room = self.read.try_reserve(more).map_err(|_| std::io::ErrorKind::OutOfMemory.into());
            let filled = room.and_then(|()| {
                self.read.resize(start + more, 0);
                self.source.read_exact(&mut self.read[start..])
            });
            if let Err(error) = filled {
                self.error = Some(error);
            }
            self.unread -= more;
            (more > 0 && self.error.is_none()).then_some(())?;
        }
        Some(())
    }
}

impl<R: Read> Source for Footer<R> {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        self.fill(len)?;
        self.taken += len;
        Some(&self.read[self.taken - len..self.taken])
    }
}

/// The walk over metadata.
struct Walk<S> {
    source: S,
    kept: Vec<usize>,
}

impl<S: Source> Walk<S> {
    /// Skips a value of Thrift type `kind`. `None` if the value does not have this shape.
    fn pass(&mut self, shape: &Shape, kind: u8) -> Option<()> {
        match (shape, kind) {
            (Bool, 1 | 2) => {}
            (Byte, 3) => drop(self.byte()?),
            (Int, 4..=6) => drop(self.varint()?),
            (Kept, 4..=6) => {
                let value = self.varint()?;
                // The low bit is the sign.
                self.kept.push(usize::try_from(value >> 1).ok().filter(|_| value & 1 == 0)?);
            }
            (Zero, 4..=6) => (self.varint()? == 0).then_some(())?,
            (Raw, 8) => {
                let len = usize::try_from(self.varint()?).ok().filter(|&len| len <= SHORT)?;
                self.source.take(len)?;
            }
            (Text, 8) => {
                let mut left = usize::try_from(self.varint()?).ok()?;
                while left > 0 {
                    let len = left.min(STEP);
                    (!self.source.take(len)?.contains(&0)).then_some(())?;
                    left -= len;
                }
            }
            (List(entry), 9) => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                match entry {
                    Struct(fields) => {
                        (head & 15 == STRUCT).then_some(())?;
                        (0..len).try_for_each(|_| (self.fields(fields)? > 0).then_some(()))?;
                    }
                    entry => {
                        (len <= SHORT as u64).then_some(())?;
                        (0..len).try_for_each(|_| self.pass(entry, head & 15))?;
                    }
                }
            }
            (Struct(fields), STRUCT) => drop(self.fields(fields)?),
            _ => return None,
        }
        Some(())
    }

    /// Skips the fields of a struct, and returns how many there were.
    fn fields(&mut self, fields: &[(u8, Shape)]) -> Option<usize> {
        let (mut number, mut count) = (0u8, 0);
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(count);
            }
            number = number.checked_add(head >> 4).filter(|_| head >> 4 > 0)?;
            let (_, shape) = fields.iter().find(|(n, _)| *n == number)?;
            self.pass(shape, head & 15)?;
            count += 1;
        }
    }

    fn byte(&mut self) -> Option<u8> {
        self.source.take(1).map(|byte| byte[0])
    }

    /// Reads an integer of seven bits per byte, the lowest bits first.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }
}

/// Reads a footer of `len` bytes. Returns it only if the Parquet reader can decode it in memory and time proportional to its
/// length. Reads ahead of the checked part by at most one step, so memory use stays small for a bad footer.
///
/// # Errors
/// The errors of reading the source.
pub fn sound_footer(source: impl Read, len: usize) -> std::io::Result<Option<Vec<u8>>> {
    let footer = Footer { source, unread: len, read: Vec::new(), taken: 0, error: None };
    let mut walk = Walk { source: footer, kept: Vec::new() };
    let sound = walk.pass(&FILE, STRUCT).is_some();
    let Walk { source: footer, kept } = walk;
    if let Some(error) = footer.error {
        return Err(error);
    }
    let children = kept.iter().try_fold(0usize, |sum, children| sum.checked_add(*children));
    let bounded = kept.len() <= MAX_GROUPS && children.is_some_and(|children| children <= len);
    Ok((sound && bounded && footer.taken == len).then_some(footer.read))
}

/// The header of a data page of plain values.
pub struct Page {
    /// Bytes of the header. The next field counts the bytes that follow the header.
    pub header: usize,
    pub bytes: usize,
    pub values: usize,
}

impl Page {
    /// Reads the header at the start of these bytes. `None` for any other kind of page.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut walk = Walk { source: bytes, kept: Vec::new() };
        walk.pass(&PAGE, STRUCT)?;
        let [page, values] = walk.kept[..] else { return None };
        Some(Self { header: bytes.len() - walk.source.len(), bytes: page, values })
    }
}

/// The number of values in the pages of a column. `None` unless all pages are data pages of plain values.
pub fn plain_values(mut pages: &[u8]) -> Option<usize> {
    let mut total = 0usize;
    while !pages.is_empty() {
        let page = Page::read(pages)?;
        pages = pages.get(page.header.checked_add(page.bytes)?..)?;
        total = total.checked_add(page.values)?;
    }
    Some(total)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    fn is_sound(footer: &[u8]) -> bool {
        let read = sound_footer(footer, footer.len()).unwrap();
        assert!(read.as_ref().is_none_or(|read| read == footer));
        read.is_some()
    }

    /// A footer that holds only the first fields of the metadata: the version and a schema of `elements` elements.
    fn file(elements: usize, schema: &[u8], rest: &[u8]) -> Vec<u8> {
        let head = [0x15, 2, 0x19, 0xFC, elements as u8 | 128, (elements >> 7) as u8 | 128, (elements >> 14) as u8];
        [&head, schema, rest, &[0]].concat()
    }

    /// A group called "g", and its number of children.
    fn group(children: &[u8]) -> Vec<u8> {
        [&[0x35, 0, 0x18, 1, b'g', 0x15], children, &[0]].concat()
    }

    /// A required Float called "x".
    const LEAF: [u8; 8] = [0x15, 8, 0x25, 0, 0x18, 1, b'x', 0];

    unit_test!(metadata_in_proportion);
    fn metadata_in_proportion() {
        assert!(is_sound(&file(2, &[&group(&[2])[..], &LEAF].concat(), &[])));
        // 2^31 - 1 children, but only one is there.
        assert!(!is_sound(&file(2, &[&group(&[0xFE, 0xFF, 0xFF, 0xFF, 0x0F])[..], &LEAF].concat(), &[])));
        // A list of 2^31 - 1 booleans in a field that the format does not have.
        assert!(!is_sound(&file(2, &[&group(&[2])[..], &LEAF].concat(), &[0x79, 0xF1, 0xFF, 0xFF, 0xFF, 0xFF, 7])));
        // Groups in groups, as deep as the file is long.
        assert!(is_sound(&file(21, &[&group(&[2]).repeat(20)[..], &LEAF].concat(), &[])));
        assert!(!is_sound(&file(100_001, &[&group(&[2]).repeat(100_000)[..], &LEAF].concat(), &[])));
        // A child count of another type than the format's.
        assert!(!is_sound(&file(2, &[&[0x38, 1, b'g', 0x13, 2, 0], &LEAF[..]].concat(), &[])));
    }

    /// Bytes that are all zero, and how many of them were read.
    struct Hole(usize);

    impl Read for Hole {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            out.fill(0);
            self.0 += out.len();
            Ok(out.len())
        }
    }

    unit_test!(a_hole_is_not_read_to_its_end);
    fn a_hole_is_not_read_to_its_end() {
        let key = |key: &[u8]| [&[0x39, 0x1C, 0x18, key.len() as u8][..], key, &[0]].concat();
        let starts: [&[u8]; 6] = [
            &[],
            // A key of 2^31 bytes. It follows a field that is a list of one pair.
            &[0x59, 0x1C, 0x18, 0x80, 0x80, 0x80, 0x80, 0x08],
            // 2^31 schema elements, row groups, pairs and column orders.
            &[0x29, 0xFC, 0x80, 0x80, 0x80, 0x80, 0x08],
            &[0x49, 0xFC, 0x80, 0x80, 0x80, 0x80, 0x08],
            &[0x59, 0xFC, 0x80, 0x80, 0x80, 0x80, 0x08],
            &[0x79, 0xFC, 0x80, 0x80, 0x80, 0x80, 0x08],
        ];
        for start in starts {
            let mut hole = Hole(0);
            assert!(sound_footer(start.chain(&mut hole), 1 << 31).unwrap().is_none());
            assert!(hole.0 <= 2 * STEP, "{} bytes were read", hole.0);
        }
        // In a column: 2^31 encodings, or 2^31 parts of a path.
        for list in [&[0x29, 0xF5][..], &[0x39, 0xF8]] {
            let start = [&[0x49, 0x1C, 0x19, 0x1C, 0x3C][..], list, &[0x80, 0x80, 0x80, 0x80, 0x08]].concat();
            let mut hole = Hole(0);
            assert!(sound_footer(start.chain(&mut hole), 1 << 31).unwrap().is_none());
            assert!(hole.0 <= 2 * STEP, "{} bytes were read", hole.0);
        }
        assert!(is_sound(&file(2, &[&group(&[2])[..], &LEAF].concat(), &key(b"key"))));
        assert!(!is_sound(&file(2, &[&group(&[2])[..], &LEAF].concat(), &key(b"k\0y"))), "a NUL in a key");
        let cut = sound_footer(&[0x15, 2, 0x19][..], 100);
        assert_eq!(cut.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }

    unit_test!(pages_of_plain_values);
    fn pages_of_plain_values() {
        let page = |kind: u8, encoding: u8| {
            let header = [0x15, kind, 0x15, 16, 0x15, 16, 0x2C, 0x15, 4, 0x15, encoding, 0x15, 6, 0x15, 6, 0, 0];
            [&header[..], &[0; 8]].concat()
        };
        let plain = page(0, 0);
        assert_eq!(plain_values(&plain), Some(2));
        assert_eq!(plain_values(&plain.repeat(3)), Some(6));
        assert_eq!(plain_values(&plain[..plain.len() - 1]), None);
        assert_eq!(plain_values(&page(0, 16)), None, "another encoding");
        assert_eq!(plain_values(&page(2, 0)), None, "an index page");
        // 2^31 - 1 dictionary values in no bytes.
        let dictionary = [0x15, 4, 0x15, 0, 0x15, 0, 0x4C, 0x15, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 0x15, 0, 0, 0];
        assert_eq!(plain_values(&[&dictionary[..], &plain].concat()), None);
    }
}
