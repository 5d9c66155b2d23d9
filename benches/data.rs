//! Generates the rows.

use polars_kmeans::base::parallel::for_each_task;
use polars_kmeans::{Features, Float};

/// The generator splitmix64, started at any place.
pub fn scrambled(place: u64) -> u64 {
    let mut z = place.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Columns as features.
pub fn features_of<T: Float>(columns: &[Vec<T>]) -> Features<'_, T> {
    Features::from_columns(columns.iter().map(|column| &column[..])).expect("equal lengths")
}

/// Uniform rows between 0 and 1 in `d` columns.
pub fn uniform<T: Float>(n: usize, d: usize) -> Vec<Vec<T>> {
    filled(n, d, |f, i| (scrambled((i * d + f) as u64) >> 32) as f64 / 4_294_967_296.0)
}

/// Ten blobs (Lutz et al. 2018, section 6.1) in `d` columns.
pub fn blobs<T: Float>(n: usize, d: usize) -> Vec<Vec<T>> {
    let salt = ((n + d) as u64) << 40;
    let unit = |bits: u64| bits as f64 / 65_536.0;
    let centres: Vec<f64> = (0..10 * d as u64).map(|i| 200.0 * unit(scrambled(salt ^ !i) >> 48) - 100.0).collect();
    filled(n, d, |f, i| {
        let i = i as u64;
        let blob = ((scrambled(salt ^ i) >> 32) * 10) >> 32;
        // The sum of four uniform numbers is close enough to normal. Its variance is 1/3.
        let bits = scrambled(salt ^ (1 << 39) ^ (i * d as u64 + f as u64));
        let sum: f64 = (0..4).map(|q| unit(bits >> (16 * q) & 0xFFFF)).sum();
        centres[blob as usize * d + f] + 17.32 * (sum - 2.0)
    })
}

/// Columns of the values of (feature, row). All threads generate them.
fn filled<T: Float>(n: usize, d: usize, value_of: impl Fn(usize, usize) -> f64 + Sync) -> Vec<Vec<T>> {
    const PIECE: usize = 1 << 16;
    let mut columns: Vec<Vec<T>> = (0..d).map(|_| vec![T::default(); n]).collect();
    let tasks = columns
        .iter_mut()
        .enumerate()
        .flat_map(|(f, column)| column.chunks_mut(PIECE).enumerate().map(move |(piece, values)| (f, piece * PIECE, values)));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for_each_task(&mut vec![(); threads], tasks, |(), (f, first, values)| {
        for (i, value) in values.iter_mut().enumerate() {
            *value = T::from_f64(value_of(f, first + i));
        }
    })
    .expect("it is not stopped");
    columns
}
