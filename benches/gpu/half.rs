//! Values of 16 bits.

use polars_kmeans::Half;
use polars_kmeans::base::parallel::for_each_task;

/// The bits of values of 16 bits, rounded toward zero. They replace the float32 values. Their magnitudes are 0 or from 2^-14 to 2^15.
pub fn narrowed(half: Half, values: &mut [f32]) -> Vec<u16> {
    let one = |x: f32| match (half, x.to_bits()) {
        (Half::BFloat16, bits) => (bits >> 16) as u16,
        (Half::Float16, bits) if x.abs() < 2f32.powi(-14) => (bits >> 31 << 15) as u16,
        (Half::Float16, bits) => ((bits >> 31 << 15) | ((bits & 0x7fff_ffff) - (112 << 23)) >> 13) as u16,
    };
    let mut narrow = vec![0; values.len()];
    let pieces = values.chunks_mut(1 << 16).zip(narrow.chunks_mut(1 << 16));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for_each_task(&mut vec![(); threads], pieces, |(), (values, narrow)| {
        for (value, bits) in values.iter_mut().zip(narrow) {
            *bits = one(*value);
            *value = half.to_f32(*bits);
        }
    })
    .expect("nobody stops it");
    narrow
}
