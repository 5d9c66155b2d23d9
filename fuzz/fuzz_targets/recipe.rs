//! Random bytes almost never have the right checksum, so the input of a target is a recipe for a file:
//!
//! ```text
//! mode 0: the bytes themselves
//! mode 1: a file that the library wrote, edited in its head, its payload and its table; the length and the checksum of the
//!         payload are mostly set right afterwards
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes that reading may take at a time: so many, and so many for each byte of the file.
const ROOM: (usize, usize) = (4 << 20, 256);
/// Where the parts of a file begin: the length of the body, its checksum, the body.
const LENGTH: usize = 4 + 13 + 1;
const CHECKSUM: usize = LENGTH + 8;
const BODY: usize = CHECKSUM + 16;

/// The file of a recipe. `files`: files that the library wrote.
pub fn file(files: &[Vec<u8>], u: &mut Unstructured) -> Result<Vec<u8>> {
    match u.int_in_range(0..=3)? {
        0 => Ok(u.bytes(u.len())?.to_vec()),
        _ => edited(u.choose(files)?, u),
    }
}

/// A file that has been edited. The head tells the new length and the new checksum of the body, or does not.
fn edited(file: &[u8], u: &mut Unstructured) -> Result<Vec<u8>> {
    let length = u64::from_le_bytes(file[LENGTH..CHECKSUM].try_into().expect("8 bytes")) as usize;
    let (head, rest) = file.split_at(BODY);
    let (body, table) = rest.split_at(length);
    let (mut head, mut body, mut table) = (head.to_vec(), body.to_vec(), table.to_vec());
    let repair = u.ratio(7, 8)?;
    while !u.is_empty() {
        match u.int_in_range(0..=15)? {
            0 if !repair => edit(&mut head, u)?,
            1 => edit(&mut table, u)?,
            _ => edit(&mut body, u)?,
        }
    }
    if repair {
        head[LENGTH..CHECKSUM].copy_from_slice(&(body.len() as u64).to_le_bytes());
        head[CHECKSUM..].copy_from_slice(&xxh3_128(&body).to_le_bytes());
    }
    Ok([head, body, table].concat())
}

/// One edit anywhere.
fn edit(bytes: &mut Vec<u8>, u: &mut Unstructured) -> Result<()> {
    let range = range(bytes.len(), u)?;
    let at = range.start;
    match u.int_in_range(0..=7)? {
        // Other bytes.
        0 => {
            let new = u.bytes(range.len().min(u.len()).min(8))?;
            bytes[at..][..new.len()].copy_from_slice(new);
        }
        // A number, as postcard writes whole ones, in the place of one.
        1 | 2 => {
            let old = bytes[at..].iter().position(|byte| byte & 128 == 0).map_or(bytes.len() - at, |len| len + 1);
            let new = varint(*u.choose(&[0, 1, 2, 3, 4, 127, 128, 1 << 14, 1 << 31, (1 << 32) - 2, 1 << 33, u64::MAX])?);
            bytes.splice(at..at + old, new);
        }
        // A float in the place of one.
        3 => {
            let new = *u.choose(&[0.0, -0.0, -1.0, 1e300, 5e-324, f64::NAN, f64::INFINITY])?;
            let end = bytes.len().min(at + 8);
            bytes.splice(at..end, new.to_le_bytes());
        }
        4 => {
            let new = u.bytes(u.len().min(8))?.to_vec();
            bytes.splice(at..at, new);
        }
        5 => drop(bytes.drain(range)),
        // Many times over: long lists.
        6 => {
            let times = u.int_in_range(1..=64)?;
            let new = bytes[range].repeat(times);
            bytes.splice(at..at, new);
        }
        _ => bytes.truncate(at),
    }
    Ok(())
}

fn range(len: usize, u: &mut Unstructured) -> Result<Range<usize>> {
    let start = u.int_in_range(0..=len)?;
    Ok(start..start + u.int_in_range(0..=64.min(len - start))?)
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

// ---- memory ---------------------------------------------------------------------------------------------------

/// Reads a file, and sees to it that reading takes no more memory than the file is worth.
pub fn in_room<'b, R>(bytes: &'b [u8], read: impl FnOnce(&'b [u8]) -> R) -> R {
    let room = ROOM.0 + ROOM.1 * bytes.len();
    let before = PEAK.restart();
    let result = read(bytes);
    let taken = PEAK.highest.load(Relaxed) - before;
    assert!(taken <= room, "reading took {taken} bytes, more than {room}");
    result
}

#[global_allocator]
static PEAK: Peak = Peak { now: AtomicUsize::new(0), highest: AtomicUsize::new(0) };

/// The system's allocator, with a note of the most that was taken at a time.
struct Peak {
    now: AtomicUsize,
    highest: AtomicUsize,
}

impl Peak {
    /// Forgets what was; gives the bytes that are taken now.
    fn restart(&self) -> usize {
        let now = self.now.load(Relaxed);
        self.highest.store(now, Relaxed);
        now
    }

    fn add(&self, bytes: usize) {
        self.highest.fetch_max(self.now.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    }
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Peak {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.now.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size);
        self.now.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}
