//! What a Parquet file says about itself, checked before the Parquet reader believes it.
//!
//! The reader makes room for as many children or dictionary values as a file claims to have, follows a schema as deep as it
//! goes, and counts through lists of things that take no bytes. So metadata are walked first, byte by byte, and handed on if
//! they are the structs below, with the types that the format gives their fields (the reader takes those for granted, so both
//! read the same); and of the pages only plain ones are.
//!
//! Metadata are in Thrift's compact protocol: a struct is a list of fields, each with a byte of its number (as the difference
//! to the last one's) and its type; a zero ends it.

use Shape::{Bool, Byte, Bytes, Int, Kept, List, Struct, Zero};

/// What may stand somewhere.
enum Shape {
    /// In a field's type.
    Bool,
    Byte,
    Int,
    /// An integer that is wanted.
    Kept,
    /// The integer 0.
    Zero,
    Bytes,
    List(&'static Shape),
    /// Fields by their numbers, any of which may be missing.
    Struct(&'static [(u8, Shape)]),
}

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
/// Kept: the number of children.
const SCHEMA_ELEMENT: Shape =
    Struct(&[(1, Int), (2, Int), (3, Int), (4, Bytes), (5, Kept), (6, Int), (7, Int), (8, Int), (9, Int), (10, LOGICAL_TYPE)]);
const KEY_VALUE: Shape = Struct(&[(1, Bytes), (2, Bytes)]);
const STATISTICS: Shape = Struct(&[(1, Bytes), (2, Bytes), (3, Int), (4, Int), (5, Bytes), (6, Bytes), (7, Bool), (8, Bool)]);
const SIZE_STATISTICS: Shape = Struct(&[(1, Int), (2, List(&Int)), (3, List(&Int))]);
const PAGE_ENCODING: Shape = Struct(&[(1, Int), (2, Int), (3, Int)]);
const COLUMN: Shape = Struct(&[
    (1, Int),
    (2, List(&Int)),
    (3, List(&Bytes)),
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
const COLUMN_CHUNK: Shape = Struct(&[(1, Bytes), (2, Int), (3, COLUMN), (4, Int), (5, Int), (6, Int), (7, Int)]);
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
    (6, Bytes),
    (7, List(&COLUMN_ORDER)),
]);
/// A data page of plain values. Kept: its bytes and its values.
const PAGE: Shape =
    Struct(&[(1, Zero), (2, Int), (3, Kept), (4, Int), (5, Struct(&[(1, Kept), (2, Zero), (3, Int), (4, Int)]))]);

/// The type of a struct.
const STRUCT: u8 = 12;
/// A file's end: the length of the footer, and the mark.
const END: usize = 8;
/// Groups in a schema, and so at most how deep it is. A model has 3: the root, a list column, and the group of its entries.
const MAX_GROUPS: usize = 32;

/// The walk.
struct Walk<'a> {
    rest: &'a [u8],
    kept: Vec<usize>,
}

impl Walk<'_> {
    /// Goes past a value of Thrift type `kind`; none if it has not this shape.
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
            (Bytes, 8) => {
                let len = usize::try_from(self.varint()?).ok()?;
                self.rest = self.rest.get(len..)?;
            }
            (List(entry), 9) => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // Every entry takes bytes: booleans are in no list.
                (0..len).try_for_each(|_| self.pass(entry, head & 15))?;
            }
            (Struct(fields), STRUCT) => {
                let mut number = 0u8;
                loop {
                    let head = self.byte()?;
                    if head == 0 {
                        break;
                    }
                    number = number.checked_add(head >> 4).filter(|_| head >> 4 > 0)?;
                    let (_, shape) = fields.iter().find(|(n, _)| *n == number)?;
                    self.pass(shape, head & 15)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    /// Seven bits a byte, the lowest first.
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

/// Whether the Parquet reader can read a file's metadata in room and time in proportion to their length.
pub fn is_sound(file: &[u8]) -> bool {
    let footer = || {
        let (rest, end) = file.split_at_checked(file.len().checked_sub(END)?)?;
        let len = u32::from_le_bytes(end[..4].try_into().ok()?) as usize;
        let mut walk = Walk { rest: rest.get(rest.len().checked_sub(len)?..)?, kept: Vec::new() };
        walk.pass(&FILE, STRUCT)?;
        let children = walk.kept.iter().try_fold(0usize, |sum, children| sum.checked_add(*children))?;
        (walk.kept.len() <= MAX_GROUPS && children <= len).then_some(())
    };
    footer().is_some()
}

/// The number of values in a column's pages; none unless all of them are data pages of plain values.
pub fn plain_values(pages: &[u8]) -> Option<usize> {
    let mut walk = Walk { rest: pages, kept: Vec::new() };
    let mut total = 0usize;
    while !walk.rest.is_empty() {
        walk.kept.clear();
        walk.pass(&PAGE, STRUCT)?;
        let [bytes, values] = walk.kept[..] else { return None };
        walk.rest = walk.rest.get(bytes..)?;
        total = total.checked_add(values)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of nothing but the metadata's first fields: the version and a schema of so many elements.
    fn file(elements: usize, schema: &[u8], rest: &[u8]) -> Vec<u8> {
        let head = [0x15, 2, 0x19, 0xFC, elements as u8 | 128, (elements >> 7) as u8 | 128, (elements >> 14) as u8];
        let footer = [&head, schema, rest, &[0]].concat();
        [b"PAR1", &footer[..], &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
    }

    /// A group called "g", and its number of children.
    fn group(children: &[u8]) -> Vec<u8> {
        [&[0x35, 0, 0x18, 1, b'g', 0x15], children, &[0]].concat()
    }

    /// A required Float called "x".
    const LEAF: [u8; 8] = [0x15, 8, 0x25, 0, 0x18, 1, b'x', 0];

    #[test]
    fn metadata_in_proportion() {
        assert!(is_sound(&file(2, &[&group(&[2])[..], &LEAF].concat(), &[])));
        // 2^31 - 1 children, of which one is there.
        assert!(!is_sound(&file(2, &[&group(&[0xFE, 0xFF, 0xFF, 0xFF, 0x0F])[..], &LEAF].concat(), &[])));
        // A list of 2^31 - 1 booleans in a field that the format does not have.
        assert!(!is_sound(&file(2, &[&group(&[2])[..], &LEAF].concat(), &[0x79, 0xF1, 0xFF, 0xFF, 0xFF, 0xFF, 7])));
        // Groups in groups, as deep as the file is long.
        assert!(is_sound(&file(21, &[&group(&[2]).repeat(20)[..], &LEAF].concat(), &[])));
        assert!(!is_sound(&file(100_001, &[&group(&[2]).repeat(100_000)[..], &LEAF].concat(), &[])));
        // A child count of another type than the format's.
        assert!(!is_sound(&file(2, &[&[0x38, 1, b'g', 0x13, 2, 0], &LEAF[..]].concat(), &[])));
    }

    #[test]
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
