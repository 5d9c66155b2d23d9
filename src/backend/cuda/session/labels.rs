//! Downloads labels. All threads widen them.

use crate::backend::cuda::device::Buffer;
use crate::backend::cuda::passes::labels::widen;
use crate::backend::cuda::rows::download::{self, PIECE};
use crate::base::error::Result;

/// The first labels, as many as `labels` has places. On the device each has `bytes` bytes.
pub fn download(from: &Buffer<u8>, bytes: usize, labels: &mut [u32]) -> Result<()> {
    download::download(from, labels.len() * bytes, PIECE * bytes, labels.chunks_mut(PIECE), |narrow, labels| match bytes {
        1 => labels.iter_mut().zip(narrow).for_each(|(label, byte)| *label = widen(&[*byte])),
        2 => labels.iter_mut().zip(narrow.as_chunks::<2>().0).for_each(|(label, bytes)| *label = widen(bytes)),
        _ => labels.iter_mut().zip(narrow.as_chunks::<4>().0).for_each(|(label, bytes)| *label = widen(bytes)),
    })
}
