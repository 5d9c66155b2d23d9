//! Generated cases: every kind of data on which a k-means has failed before.

use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use polars_kmeans::Job;
#[cfg(feature = "cuda")]
use polars_kmeans::backend::select::{DeviceInfo, Shape};
#[cfg(feature = "cuda")]
use polars_kmeans::base::params::DrawnCandidates;
use polars_kmeans::exact::reference;
use polars_kmeans::input::tile::RowBlock;
use polars_kmeans::{Chunk, Column, Device, Engine, Features, Fitted, Float, Init, KMeans, Metric, Model, Scale};
use rayon::prelude::*;

/// The GPU, if there is one that can be used: that of `POLARS_KMEANS_TEST_DEVICE` if it is set, which may name several. If a GPU was
/// demanded and none can be used, this fails.
pub fn gpu() -> Option<Device> {
    static USABLE: OnceLock<bool> = OnceLock::new();
    let usable = *USABLE.get_or_init(|| {
        let found = polars_kmeans::devices();
        let usable = found.as_ref().is_ok_and(|devices| devices.iter().any(|device| device.usable));
        assert!(usable || std::env::var_os("POLARS_KMEANS_DEMAND_GPU").is_none(), "a GPU was demanded: {found:?}");
        usable
    });
    let named = || std::env::var("POLARS_KMEANS_TEST_DEVICE").ok().map(|name| name.parse().expect("a device"));
    usable.then(|| named().unwrap_or(Device::Cuda(None)))
}

/// The GPU of these tests as the driver describes it, or an invented one.
#[cfg(feature = "cuda")]
pub fn gpu_info() -> DeviceInfo {
    let usable = polars_kmeans::devices().ok().and_then(|all| all.into_iter().find(|device| device.usable));
    usable.unwrap_or_else(|| DeviceInfo {
        ordinal: 0,
        name: "none".into(),
        memory_free: 0,
        memory_total: 0,
        multiprocessors: 132,
        shared_per_block: 227 << 10,
        compute_capability: (9, 0),
        driver: (13, 0),
        usable: true,
        reason: String::new(),
    })
}

/// The shape of a fit. Seedings other than k-means|| need no more memory than others.
#[cfg(feature = "cuda")]
pub fn shape<T: Engine>([n, d, k]: [usize; 3], weighted: bool) -> Shape {
    Shape {
        job: Job::Fit,
        rows: n as u64,
        features: d,
        clusters: k,
        float64: !T::IS_F32,
        half: false,
        weighted,
        candidates: DrawnCandidates::NONE,
        priced: false,
    }
}

/// Some rows as starting centroids. About one in `repeated` of them is the first row: that makes empty clusters, which take the
/// farthest rows.
pub fn some_rows<T: Float>(x: &[T], d: usize, k: usize, repeated: usize, random: &mut Random) -> Vec<f64> {
    let mut chosen = || if random.below(repeated) == 0 { 0 } else { random.below(x.len() / d) };
    let chosen: Vec<usize> = (0..k).map(|_| chosen()).collect();
    chosen.into_iter().flat_map(|i| x[i * d..][..d].iter().map(|v| v.to_f64())).collect()
}

/// A fit without tolerance that starts from some rows: see [`some_rows`].
pub fn from_some<T: Float>(x: &[T], d: usize, k: usize, repeated: usize, random: &mut Random) -> KMeans {
    KMeans::new(k).init(Init::Given(some_rows(x, d, k, repeated, random))).tol(0.0)
}

/// Weights up to 9. About one in eight is 0.
pub fn some_weights(n: usize, random: &mut Random) -> Vec<f64> {
    (0..n).map(|_| if random.below(8) == 0 { 0.0 } else { 9.0 * random.unit() }).collect()
}

/// The borders of so many parts of `n` rows, at random places.
pub fn some_cuts(n: usize, parts: usize, random: &mut Random) -> Vec<usize> {
    let mut cuts: Vec<usize> = (1..parts).map(|_| random.below(n + 1)).chain([0, n]).collect();
    cuts.sort_unstable();
    cuts
}

/// How many clusters rows of a kind may have, at most `k`: some kinds have few distinct rows.
pub fn clusters_of(kind: &str, d: usize, k: usize) -> usize {
    let most = match kind {
        "one value" => 1,
        "duplicates" => 5,
        "lattice" if d < 8 => 4usize.pow(d as u32) / 2,
        // As float32, such values are whole numbers.
        "offset 1e7" if d == 1 => 20,
        _ => k,
    };
    most.min(k)
}

/// `n` rows amid two of `k` centroids, or one float next to that in one feature, and the centroids. All values are around `offset`, then multiplied
/// by `scale`.
pub fn rows_between([n, d, k]: [usize; 3], offset: f64, scale: f64, random: &mut Random) -> (Vec<f32>, Vec<f64>) {
    let centroids: Vec<f32> = (0..k * d).map(|_| ((offset + random.normal()) * scale) as f32).collect();
    let mut x = Vec::new();
    for _ in 0..n {
        let [a, b] = [random.below(k), random.below(k)];
        let moved = random.below(d);
        for f in 0..d {
            let middle = ((f64::from(centroids[a * d + f]) + f64::from(centroids[b * d + f])) / 2.0) as f32;
            let next = if random.below(2) == 0 { middle.next_up() } else { middle.next_down() };
            x.push(if f == moved { next } else { middle });
        }
    }
    (x, centroids.into_iter().map(f64::from).collect())
}

/// The number of rounds of a test: `POLARS_KMEANS_GPU_ROUNDS` if it is set, else `all`. It is set for a checker that runs
/// kernels a hundred times slower.
pub fn rounds(all: usize) -> usize {
    std::env::var("POLARS_KMEANS_GPU_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(all)
}

/// The estimator with rows that arrive in one of several ways. Half of the time, they stay as they are.
pub fn transformed(estimator: KMeans, round: u64, d: usize) -> KMeans {
    match round % 10 {
        1 if d > 2 => estimator.metric(Metric::Cosine),
        3 => estimator.scale(Scale::Standard),
        5 => estimator.scale(Scale::Robust),
        7 if d > 2 => estimator.metric(Metric::Cosine).scale(Scale::Standard),
        9 => estimator.scale(Scale::Factors([("column_0".to_owned(), 1.7)].into())),
        _ => estimator,
    }
}

/// The estimator on the GPU, if there is one.
pub fn on_gpu(estimator: &KMeans) -> Option<KMeans> {
    gpu().map(|device| estimator.clone().device(device))
}

/// The estimator as it is, and on the GPU, if there is one.
pub fn here_and_on_gpu(estimator: &KMeans) -> impl Iterator<Item = KMeans> {
    [Some(estimator.clone()), on_gpu(estimator)].into_iter().flatten()
}

/// The hash of a fit, or the text of its error.
pub fn brief<T: Float>(fit: &polars_kmeans::Result<Fitted<T>>) -> Result<u64, String> {
    fit.as_ref().map(hash).map_err(ToString::to_string)
}

/// Fails unless each row has the label of the reference.
pub fn assert_nearest<T: Engine>(x: &[T], fit: &Fitted<T>, what: &str) {
    let (centroids, d) = (fit.model.centroids(), x.len() / fit.labels.len());
    x.par_chunks_exact(d).zip(&fit.labels).enumerate().for_each(|(i, (x, label))| {
        assert_eq!(*label, reference::nearest(x, centroids).label, "{what}: row {i} {x:?}");
    });
}

/// All labels of a prediction. Every row must have one.
pub fn predicted<T: Engine>(model: &Model<T>, features: &Features<'_, T>) -> Vec<u32> {
    model.predict(features).unwrap().iter().map(Option::unwrap).collect()
}

/// FNV-1a over the bits of labels, centroids, inertia, sizes, history and iteration count.
pub fn hash<T: Float>(fit: &Fitted<T>) -> u64 {
    let model = &fit.model;
    let words = (fit.labels.iter().map(|l| u64::from(*l)))
        .chain(model.centroids().iter().map(|c| c.to_f64().to_bits()))
        .chain([model.inertia().to_bits(), u64::from(model.n_iter())])
        .chain(model.sizes().iter().copied())
        .chain(model.inertias().iter().map(|i| i.to_bits()))
        .chain(model.history().iter().flat_map(|row| [row.changed, row.shift.to_bits(), row.inertia.unwrap_or(0.0).to_bits()]));
    words.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// splitmix64 (Steele, Lea and Flood 2014). Tests have their own random numbers, not the engine's.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// A roughly normal number: the sum of twelve.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

pub const KINDS: [&str; 13] = [
    "blobs",
    "uniform",
    "lattice",
    "duplicates",
    "offset 1e6",
    "offset 1e7",
    "mixed scales",
    "sentinel",
    "constant columns",
    "denormals",
    "tight blobs far apart",
    "one value",
    "a row far out",
];

/// More kinds, for filters that compare copies of rows. Vectors have lengths as those of a language model, or the length 1.
#[cfg(feature = "cuda")]
pub const MORE_KINDS: [&str; 10] = [
    "lognormal",
    "one blob",
    "copies",
    "token vectors",
    "unit vectors",
    "heavy tails",
    "heavy columns",
    "corners",
    "a line",
    "a sphere",
];

/// Rows as `(n, d)`, row-major.
pub fn rows<T: Float>(kind: &str, n: usize, d: usize, random: &mut Random) -> Vec<T> {
    let centres: Vec<f64> = (0..10 * d).map(|_| 200.0 * random.unit() - 100.0).collect();
    let blob = |random: &mut Random, f: usize, b: usize, spread: f64| centres[b * d + f] + spread * random.normal();
    let heavy = |random: &mut Random| (3.0 * random.normal()).exp() * if random.below(2) == 0 { 1.0 } else { -1.0 };
    let axes = Axes::of(kind, d, random);
    let hundred = if kind == "hundred clusters" { 100 } else { 0 };
    let many: Vec<f64> = (0..hundred * d).map(|_| 200.0 * random.unit() - 100.0).collect();
    let mut out = Vec::with_capacity(n * d);
    for i in 0..n {
        let b = random.below(10);
        let earlier = random.below(i + 1).min(if kind == "copies" { n / 12 } else { 6 });
        let whole = axes.row(kind, d, random);
        for f in 0..d {
            let value = match kind {
                "blobs" => blob(random, f, b, 10.0),
                "uniform" => random.unit(),
                "lattice" => random.below(4) as f64,
                "duplicates" if i > 6 => {
                    let value: T = out[earlier * d + f];
                    value.to_f64()
                }
                "copies" if i > n / 12 => {
                    let value: T = out[earlier * d + f];
                    value.to_f64()
                }
                "duplicates" | "copies" | "one blob" => random.normal(),
                "offset 1e6" => 1e6 + random.normal(),
                "offset 1e7" => 1e7 + blob(random, f, b, 0.5),
                "mixed scales" => random.normal() * [1e-30, 1.0, 1e30][f % 3] * if T::IS_F32 { 1e-5 } else { 1.0 },
                "sentinel" if i == n / 2 && f == 0 && i > 0 => 9_999_999.0,
                "sentinel" => random.normal(),
                "constant columns" if f % 2 == 0 => 3.25,
                "constant columns" => blob(random, f, b, 1.0),
                "a row far out" if i == n / 3 && i > 0 => 1e12,
                "a row far out" => random.normal(),
                "denormals" if T::IS_F32 => (random.below(2000) as f64 - 1000.0) * 2f64.powi(-149),
                "denormals" => (random.below(2000) as f64 - 1000.0) * 2f64.powi(-440),
                // A hundred natural clusters.
                "hundred clusters" => many[i % 100 * d + f] + 3.0 * random.normal(),
                "tight blobs far apart" => 1e5 * centres[b * d + f] + random.normal(),
                // Long tails. The scales of the columns go from 1 to 10,000.
                "lognormal" => 10f64.powf(4.0 * f as f64 / (d - 1).max(1) as f64) * (1.5 * random.normal()).exp(),
                "heavy tails" => heavy(random),
                // Columns of other sizes, and rows far out.
                "heavy columns" => heavy(random) * 10f64.powi((f % 5) as i32),
                // Many equal distances: corners of a cube, each many times.
                "corners" if f < 12 => random.below(2) as f64,
                "corners" => 7.0,
                "one value" => 42.5,
                _ => whole[f],
            };
            out.push(T::from_f64(value));
        }
    }
    out
}

/// What kinds are made of whose rows are drawn as a whole: axes of a random subspace.
struct Axes(Vec<f64>);

impl Axes {
    fn of(kind: &str, d: usize, random: &mut Random) -> Self {
        let rank = if kind.ends_with(" vectors") { (d / 8).max(2) } else { 0 };
        Self((0..rank * d).map(|_| random.normal()).collect())
    }

    /// A row of one of these kinds, or nothing.
    fn row(&self, kind: &str, d: usize, random: &mut Random) -> Vec<f64> {
        let of_length = |mut row: Vec<f64>, length: f64| {
            let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            row.iter_mut().for_each(|x| *x *= length / norm);
            row
        };
        match kind {
            "token vectors" | "unit vectors" => {
                let mut row = vec![0.0; d];
                for axis in self.0.chunks_exact(d) {
                    let z = random.normal();
                    row.iter_mut().zip(axis).for_each(|(x, a)| *x += z * a);
                }
                of_length(row, if kind == "unit vectors" { 1.0 } else { 0.4 * 95f64.powf(random.unit()) })
            }
            // Copies say little about the distances.
            "a line" => {
                let at = random.unit();
                (0..d).map(|f| at * (1 + f) as f64 + 1e-4 * random.normal()).collect()
            }
            // Distances that differ by less than copies can tell.
            "a sphere" => {
                let row = of_length((0..d).map(|_| random.normal()).collect(), 1.0);
                row.into_iter().map(|x| 1e6 + x).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The columns of row-major data.
pub fn columns<T: Copy>(rows: &[T], d: usize) -> Vec<Vec<T>> {
    (0..d).map(|f| rows.iter().skip(f).step_by(d).copied().collect()).collect()
}

pub fn from_columns<T: Engine>(columns: &[Vec<T>]) -> Features<'_, T> {
    Features::from_columns(columns.iter().map(|column| &column[..])).unwrap()
}

/// A column that is cut at up to seven random places.
pub fn in_chunks<'a, T: Copy>(values: &'a [T], random: &mut Random) -> Column<'a, T> {
    let parts = 1 + random.below(8);
    let cuts = some_cuts(values.len(), parts, random);
    Column::new(cuts.windows(2).map(|cut| Chunk::new(&values[cut[0]..cut[1]], None).unwrap()))
}

/// The rows between consecutive cuts as parts.
pub fn parts_of<'a, T: Engine>(features: &Features<'a, T>, weights: Option<&'a [f64]>, cuts: &[usize]) -> Vec<RowBlock<'a, T>> {
    let part = |cut: &[usize]| {
        let weights = weights.map(|weights| Column::from_slice(&weights[cut[0]..cut[1]]));
        RowBlock::new(features.slice(cut[0]..cut[1]).unwrap(), weights)
    };
    cuts.windows(2).map(part).collect()
}

/// The bits of a bitmap in which each row is valid or not.
pub fn bitmap(valid: &[bool]) -> Vec<u8> {
    let mut bits = vec![0u8; valid.len().div_ceil(8)];
    valid.iter().enumerate().filter(|(_, valid)| **valid).for_each(|(i, _)| bits[i / 8] |= 1 << (i % 8));
    bits
}

/// A bitmap of `n` rows, three of four of which are valid.
pub fn some_valid(n: usize, random: &mut Random) -> Vec<u8> {
    (0..n / 8 + 1).map(|_| random.next() as u8 | random.next() as u8 | 0xe1).collect()
}
