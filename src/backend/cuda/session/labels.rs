//! Downloads labels. All threads widen them.

use crate::backend::cuda::device::Buffer;
use crate::backend::cuda::rows::download::{self, PIECE};
use crate::base::error::Result;
use crate::exact::cluster_sums::UNASSIGNED;

/// The first labels, as many as `labels` has places. On the device each has `bytes` bytes.
pub fn download(from: &Buffer<u8>, bytes: usize, labels: &mut [u32]) -> Result<()> {
    download::download(from, labels.len() * bytes, PIECE * bytes, labels.chunks_mut(PIECE), |narrow, labels| match bytes {
        1 => labels.iter_mut().zip(narrow).for_each(|(label, byte)| *label = widen(&[*byte])),
        2 => labels.iter_mut().zip(narrow.as_chunks::<2>().0).for_each(|(label, bytes)| *label = widen(bytes)),
        _ => labels.iter_mut().zip(narrow.as_chunks::<4>().0).for_each(|(label, bytes)| *label = widen(bytes)),
    })
}

/// Widens a label of 1, 2 or 4 bytes. All ones stay all ones.
#[inline]
fn widen(bytes: &[u8]) -> u32 {
    match *bytes {
        [u8::MAX] | [u8::MAX, u8::MAX] => UNASSIGNED,
        [a] => u32::from(a),
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        _ => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}
