//! Data that is hard on a filter, and where fits of it start.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use polars_kmeans::base::parallel::for_each_task;

use super::data::{blobs, scrambled, uniform};

/// A kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ten blobs (Lutz et al. 2018, section 6.1).
    Blobs,
    /// Uniform between 0 and 1: nothing can be skipped.
    Uniform,
    /// e^(1.5 z) for a normal z.
    Lognormal,
    /// The same. The scales of the columns go from 1 to 10,000.
    LognormalScales,
    /// Pareto's distribution with exponent 1.2: its variance is infinite.
    Pareto,
    /// Few different integers, so most rows have equals, and many lie between two centroids.
    Ties,
    /// The blobs, a million away from 0.
    Offset,
    /// The blobs, one of which is 100,000 away from the others.
    FarGroup,
    /// Rows of length 1 in a subspace of few dimensions.
    UnitVectors,
    /// The blobs. All centroids start near their mean.
    Middle,
    /// So many natural clusters: normal rows of deviation 10 around centres between -100 and 100.
    Clusters(u32),
    /// Ten clusters of thirty clusters each.
    Nested,
}

const NAMES: [(Kind, &str); 13] = [
    (Kind::Blobs, "blobs"),
    (Kind::Uniform, "uniform"),
    (Kind::Lognormal, "lognormal"),
    (Kind::LognormalScales, "lognormal-scales"),
    (Kind::Pareto, "pareto"),
    (Kind::Ties, "ties"),
    (Kind::Offset, "offset"),
    (Kind::FarGroup, "far-group"),
    (Kind::UnitVectors, "unit-vectors"),
    (Kind::Middle, "middle"),
    (Kind::Clusters(100), "clusters-100"),
    (Kind::Clusters(1_000), "clusters-1000"),
    (Kind::Nested, "nested"),
];

impl Kind {
    pub const ALL: [Self; NAMES.len()] = {
        let mut all = [Self::Blobs; NAMES.len()];
        let mut i = 0;
        while i < NAMES.len() {
            all[i] = NAMES[i].0;
            i += 1;
        }
        all
    };
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (NAMES.iter().find(|(kind, _)| kind == self), self) {
            (Some((_, name)), _) => f.pad(name),
            (None, Self::Clusters(count)) => f.pad(&format!("clusters-{count}")),
            (None, _) => f.pad(""),
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind);
        let clusters = || text.strip_prefix("clusters-")?.parse().ok().filter(|count| *count > 0).map(Self::Clusters);
        named.or_else(clusters).ok_or_else(|| format!("{text:?}: no such kind"))
    }
}

/// A uniform number above 0 and at most 1.
fn unit(bits: u64) -> f32 {
    ((bits & 0xFFFF_FFFF) as f32 + 1.0) / 4_294_967_808.0
}

/// A normal number (Box and Muller 1958).
pub fn normal(bits: u64) -> f32 {
    (-2.0 * unit(bits).ln()).max(0.0).sqrt() * (std::f32::consts::TAU * unit(bits >> 32)).cos()
}

/// `d` columns of `n` rows. The same for every run.
pub fn generate(kind: Kind, n: usize, d: usize) -> Vec<Vec<f32>> {
    let salt = ((n + d) as u64) << 40 | 1 << 36;
    let place = |row: u64, f: usize| salt ^ (row * d as u64 + f as u64);
    // About 8,192 different rows if there are few features.
    let levels = (8_192f64.powf(1.0 / d as f64).ceil()).max(3.0) as f32;
    let scale = |f: usize| 10f32.powf(4.0 * f as f32 / (d - 1).max(1) as f32);
    match kind {
        Kind::Blobs | Kind::Middle => blobs(n, d),
        Kind::Uniform => uniform(n, d),
        Kind::Offset => changed(blobs(n, d), |_, _, x| x + 1e6),
        Kind::FarGroup => {
            // The generator of the blobs chooses the blob of a row so.
            let salt = ((n + d) as u64) << 40;
            let far = |row: u64| ((scrambled(salt ^ row) >> 32) * 10) >> 32 == 0;
            changed(blobs(n, d), |row, _, x| if far(row) { x + 1e5 } else { x })
        }
        Kind::Lognormal => changed(empty(n, d), |row, f, _| (1.5 * normal(scrambled(place(row, f)))).exp()),
        Kind::LognormalScales => changed(empty(n, d), |row, f, _| scale(f) * (1.5 * normal(scrambled(place(row, f)))).exp()),
        Kind::Pareto => changed(empty(n, d), |row, f, _| unit(scrambled(place(row, f)) >> 32).powf(-1.0 / 1.2)),
        Kind::Ties => changed(empty(n, d), |row, f, _| (unit(scrambled(place(row, f)) >> 32) * levels).ceil()),
        Kind::UnitVectors => unit_vectors(n, d, salt),
        Kind::Clusters(count) => changed(empty(n, d), |row, f, _| {
            let cluster = drawn(salt ^ 1 << 37 ^ row, u64::from(count));
            centre(salt, cluster, d, f) + 10.0 * normal(scrambled(place(row, f)))
        }),
        Kind::Nested => changed(empty(n, d), |row, f, _| {
            let inner = drawn(salt ^ 1 << 37 ^ row, 300);
            let from_outer = scrambled(salt ^ !((1 << 34) + inner * d as u64 + f as u64));
            let middle = centre(salt, inner / 30, d, f) + 20.0 * normal(from_outer);
            middle + 3.0 * normal(scrambled(place(row, f)))
        }),
    }
}

/// A number below `count`, drawn for a row.
fn drawn(place: u64, count: u64) -> u64 {
    ((scrambled(place) >> 32) * count) >> 32
}

/// A feature of the centre of a cluster: uniform between -100 and 100.
fn centre(salt: u64, cluster: u64, d: usize, f: usize) -> f32 {
    200.0 * unit(scrambled(salt ^ !(cluster * d as u64 + f as u64)) >> 32) - 100.0
}

/// The same values, `(n, d)`, row-major.
pub fn row_by_row(columns: &[Vec<f32>]) -> Vec<f32> {
    (0..columns[0].len()).flat_map(|row| columns.iter().map(move |column| column[row])).collect()
}

/// Columns of zeros.
pub fn empty(n: usize, d: usize) -> Vec<Vec<f32>> {
    vec![vec![0.0; n]; d]
}

/// Replaces every value by `value(row, feature, value)`. All threads work.
pub fn changed(mut columns: Vec<Vec<f32>>, value: impl Fn(u64, usize, f32) -> f32 + Sync) -> Vec<Vec<f32>> {
    const PIECE: usize = 1 << 16;
    let pieces = columns.iter_mut().enumerate().flat_map(|(f, column)| {
        column.chunks_mut(PIECE).enumerate().map(move |(piece, values)| (f, (piece * PIECE) as u64, values))
    });
    for_each_task(&mut workers(), pieces, |(), (f, first, values)| {
        for (row, x) in (first..).zip(values) {
            *x = value(row, f, *x);
        }
    })
    .expect("it is not stopped");
    columns
}

fn workers() -> Vec<()> {
    vec![(); std::thread::available_parallelism().map_or(1, usize::from)]
}

/// Normal coordinates in a random subspace of an eighth of the dimensions, divided by the length of the row.
fn unit_vectors(n: usize, d: usize, salt: u64) -> Vec<Vec<f32>> {
    const PIECE: usize = 1 << 12;
    let rank = (d / 8).max(2);
    let axes: Vec<f32> = (0..(rank * d) as u64).map(|i| normal(scrambled(salt ^ !i))).collect();
    let mut rows = vec![0f32; n * d];
    for_each_task(&mut workers(), rows.chunks_mut(PIECE * d).enumerate(), |(), (piece, rows)| {
        for (i, row) in rows.chunks_exact_mut(d).enumerate() {
            let first = salt ^ ((piece * PIECE + i) * rank) as u64;
            for (r, axis) in axes.chunks_exact(d).enumerate() {
                let z = normal(scrambled(first + r as u64));
                row.iter_mut().zip(axis).for_each(|(x, a)| *x += z * a);
            }
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            row.iter_mut().for_each(|x| *x /= length);
        }
    })
    .expect("it is not stopped");
    changed(empty(n, d), |row, f, _| rows[row as usize * d + f])
}

/// Where a fit starts: distinct rows in random order. [`Kind::Middle`]: points around the mean.
pub fn starting_rows(columns: &[Vec<f32>], kind: Kind, k: usize) -> Result<Vec<f64>, String> {
    let (n, d) = (columns[0].len(), columns.len());
    if kind == Kind::Middle {
        let mean = |column: &[f32]| column.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
        let means: Vec<f64> = columns.iter().map(|column| mean(column)).collect();
        return Ok((0..k * d).map(|i| means[i % d] + f64::from(normal(scrambled(i as u64)))).collect());
    }
    let (mut seen, mut rows) = (HashSet::new(), Vec::with_capacity(k * d));
    for draw in 0..1_000 * k as u64 {
        let row = (scrambled(draw) % n as u64) as usize;
        let values: Vec<u32> = columns.iter().map(|column| column[row].to_bits()).collect();
        if seen.insert(values) {
            rows.extend(columns.iter().map(|column| f64::from(column[row])));
        }
        if seen.len() == k {
            return Ok(rows);
        }
    }
    Err(format!("fewer than {k} different rows"))
}
