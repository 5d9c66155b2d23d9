//! Rows of 16 bits a value give the bits of the same values in float32: columns and rows, on the CPU and on the GPU.

use polars_kmeans::InstructionSet;
use polars_kmeans::{
    Chunk, Column, Engine, Features, Half, History, Init, KMeans, Metric, NullPolicy, Restarts, RowOrder, Scale, Validity,
    Wanted,
};

use crate::data::{
    KINDS, Random, brief, columns, hash, here_and_on_gpu, on_gpu, parts_of, rounds, rows, some_cuts, some_rows, some_weights,
};

pub const BOTH: [Half; 2] = [Half::Float16, Half::BFloat16];

/// Rows as the bits of their values, and the same values in float32. Both are `(n, d)`, row-major.
pub struct Halves {
    pub half: Half,
    pub bits: Vec<u16>,
    pub wide: Vec<f32>,
    d: usize,
}

impl Halves {
    /// Every value is the greatest finite one that is not above that of `kind`, or the least one of all.
    pub fn new(half: Half, kind: &str, n: usize, d: usize, random: &mut Random) -> Self {
        let mut finite: Vec<u16> = (0..=u16::MAX).filter(|bits| half.to_f32(*bits).is_finite()).collect();
        finite.sort_by(|a, b| half.to_f32(*a).total_cmp(&half.to_f32(*b)));
        let narrow = |x: f32| finite[finite.partition_point(|bits| half.to_f32(*bits) <= x).saturating_sub(1)];
        // The smallest numbers of float16 are the largest of these times 2^125.
        let factor = if kind == "denormals" && half == Half::Float16 { 2f32.powi(125) } else { 1.0 };
        let bits: Vec<u16> = rows::<f32>(kind, n, d, random).into_iter().map(|x| narrow(x * factor)).collect();
        let wide = bits.iter().map(|bits| half.to_f32(*bits)).collect();
        Self { half, bits, wide, d }
    }

    /// The values in 16 bits, and in float32.
    pub fn by_rows(&self) -> [Features<'_, f32>; 2] {
        [Features::from_half_rows(self.half, &self.bits, self.d).unwrap(), Features::from_rows(&self.wide, self.d).unwrap()]
    }
}

/// `bits` as a column that is cut at random places.
fn chunked<'a, T: Engine>(half: Half, bits: &'a [u16], random: &mut Random) -> Column<'a, T> {
    let parts = 1 + random.below(8);
    let cuts = some_cuts(bits.len(), parts, random);
    Column::new(cuts.windows(2).map(|w| Chunk::from_half(half, &bits[w[0]..w[1]], None).unwrap()))
}

fn estimators(data: &Halves, k: usize, random: &mut Random) -> Vec<KMeans> {
    let plain = KMeans::new(k).seed(random.next()).max_iter(12);
    let mut all = vec![
        plain.clone().history(History::Full),
        plain.clone().init(Init::Random).n_init(Restarts::Count(2)),
        plain.clone().init(Init::Given(some_rows(&data.wide, data.d, k, 3, random))),
        plain.clone().init(Init::KMeansParallel),
        plain.clone().init(Init::AfkMc2),
        plain.clone().init_sample(Some(200)),
        plain.clone().scale(Scale::Standard),
        plain.clone().row_order(RowOrder::Values),
    ];
    // With one feature there are only two directions.
    if data.d > 1 {
        all.push(plain.metric(Metric::Cosine));
    }
    all
}

#[test]
fn every_way_in_gives_the_bits_of_float32() {
    for (round, half) in BOTH.into_iter().cycle().take(8).enumerate() {
        let random = &mut Random(round as u64);
        let [n, d, k] = [[3_000, 2, 7], [2_000, 12, 20], [1_500, 40, 9], [900, 1, 5]][round / 2];
        let data = Halves::new(half, KINDS[round % 3], n, d, random);
        let weights = some_weights(n, random);
        let weights = (round % 3 == 2).then_some(weights);
        let column = weights.as_ref().map(|w| Column::from_slice(w));
        let (narrow, wide) = (columns(&data.bits, d), columns(&data.wide, d));
        for estimator in estimators(&data, k, random) {
            let [rows, expected] = data.by_rows().map(|view| estimator.fit_features(&view, column.as_ref()).unwrap());
            let expected = hash(&expected);
            assert_eq!(hash(&rows), expected, "{half:?}, {n} x {d}: rows");
            let by_columns = Features::from_half_columns(half, narrow.iter().map(|c| &c[..])).unwrap();
            let cut = Features::new(narrow.iter().map(|c| chunked(half, c, random)).collect()).unwrap();
            // Some columns in 16 bits, the others in float32.
            let mixed =
                (0..d).map(|f| if f % 2 == 0 { chunked(half, &narrow[f], random) } else { Column::from_slice(&wide[f]) });
            let mixed = Features::new(mixed.collect()).unwrap();
            for (what, view) in [("columns", by_columns.clone()), ("chunks", cut), ("mixed", mixed)] {
                for estimator in here_and_on_gpu(&estimator) {
                    let fit = estimator.fit_features(&view, column.as_ref()).unwrap();
                    assert_eq!(hash(&fit), expected, "{half:?}, {n} x {d}: {what} on {}", fit.choice.place);
                }
            }
            for set in [InstructionSet::Avx512, InstructionSet::Avx2, InstructionSet::Portable] {
                let parts = parts_of(&by_columns, weights.as_deref(), &[0, n / 3, n / 3, n / 2, n]);
                let fit = estimator.clone().threads(2).fit_parts(parts, set, Wanted::Labels).unwrap();
                assert_eq!(hash(&fit), expected, "{half:?}, {n} x {d}: merged parts, {set:?}");
            }
        }
    }
}

#[test]
fn features_of_float64_take_columns_of_16_bits() {
    for half in BOTH {
        let random = &mut Random(3);
        let data = Halves::new(half, "blobs", 800, 3, random);
        let exact: Vec<f64> = data.wide.iter().map(|x| f64::from(*x)).collect();
        let narrow = columns(&data.bits, 3);
        let other = columns(&exact, 3);
        let view = vec![chunked(half, &narrow[0], random), Column::from_slice(&other[1]), chunked(half, &narrow[2], random)];
        let estimator = KMeans::new(6).seed(1);
        for estimator in here_and_on_gpu(&estimator) {
            let of = |view: Features<'_, f64>| hash(&estimator.fit_features(&view, None).unwrap());
            let expected = of(Features::from_rows(&exact, 3).unwrap());
            assert_eq!(of(Features::new(view.clone()).unwrap()), expected);
            assert_eq!(of(Features::from_half_rows(half, &data.bits, 3).unwrap()), expected);
        }
    }
}

/// Shapes that reach every kernel on a GPU, with ties and with numbers of all magnitudes.
#[test]
fn the_gpu_gives_the_bits_of_float32() {
    let mut compared = 0;
    for round in 0..rounds(96) as u64 {
        let random = &mut Random(5_000 + round);
        let [n, d, k] = crate::gpu::shape(round, random);
        let (half, kind) = (BOTH[round as usize / 12 % 2], KINDS[random.below(KINDS.len())]);
        let data = Halves::new(half, kind, n, d, random);
        let weights = some_weights(n, random);
        let weights = (round / 24 % 2 == 1).then(|| Column::from_slice(&weights));
        let init = match random.below(3) {
            0 if k <= 200 => Init::KMeansPlusPlus,
            1 => Init::Random,
            _ => Init::Given(some_rows(&data.wide, d, k, 12, random)),
        };
        let estimator = KMeans::new(k).init(init).max_iter(1 + random.below(12) as u32).tol(0.0).seed(random.next());
        let Some(on_gpu) = on_gpu(&estimator) else { return };
        let on_gpu = if d <= 12 && round % 2 == 0 { on_gpu.strategy(polars_kmeans::Strategy::Registers) } else { on_gpu };
        let narrow = columns(&data.bits, d);
        let [by_rows, wide] = data.by_rows();
        let by_columns = Features::from_half_columns(half, narrow.iter().map(|c| &c[..])).unwrap();
        let fit = |estimator: &KMeans, view| brief(&estimator.fit_features(view, weights.as_ref()));
        let expected = fit(&estimator, &wide);
        compared += usize::from(expected.is_ok());
        for view in [&by_rows, &by_columns] {
            assert_eq!(fit(&on_gpu, view), expected, "{half:?}, {kind}, round {round}: {n} x {d} into {k}");
        }
    }
    assert!(2 * compared >= rounds(96), "only {compared} fits had an answer");
}

#[test]
fn models_answer_for_rows_of_16_bits() {
    for (round, half) in BOTH.into_iter().cycle().take(10).enumerate() {
        let random = &mut Random(40 + round as u64);
        let [n, d, k] = [[2_000, 3, 6], [1_000, 64, 40], [700, 150, 90], [500, 8, 300], [3_000, 20, 1]][round / 2];
        let mut data = Halves::new(half, KINDS[round % 3], n, d, random);
        let model = KMeans::new(k).max_iter(3).fit_features(&data.by_rows()[1], None).unwrap().model;
        for i in (0..n).filter(|i| i % 50 == 7) {
            // The infinity and a NaN of both types have these exponents.
            let bits = if half == Half::Float16 { 0x7c00 } else { 0x7f80 } | (i % 3) as u16;
            data.bits[i * d + i % d] = bits;
            data.wide[i * d + i % d] = half.to_f32(bits);
        }
        let [narrow, wide] = data.by_rows();
        let weights: Vec<f64> = (0..n).map(|i| (i % 4) as f64).collect();
        let weights = Column::from_slice(&weights);
        let expected = model.score(&wide, Some(&weights)).unwrap();
        for device in [Some(polars_kmeans::Device::Cpu), crate::data::gpu()].into_iter().flatten() {
            let placed = model.on(device);
            assert_eq!(placed.predict(&narrow).unwrap(), model.predict(&wide).unwrap(), "{half:?} {n} x {d}");
            assert_eq!(placed.predict_distances(&narrow).unwrap(), model.predict_distances(&wide).unwrap());
            let bits = |distances: Vec<f64>| distances.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(placed.transform(&narrow, false).unwrap()), bits(model.transform(&wide, false).unwrap()));
            assert_eq!(bits(placed.transform(&narrow, true).unwrap()), bits(model.transform(&wide, true).unwrap()));
            assert_eq!(placed.score(&narrow, Some(&weights)).unwrap(), expected);
        }
    }
}

#[test]
fn bad_values_are_those_of_float32() {
    for half in BOTH {
        let random = &mut Random(8);
        let mut data = Halves::new(half, "blobs", 600, 3, random);
        let infinity = if half == Half::Float16 { 0x7c00 } else { 0x7f80 };
        for (at, bits) in [(4, infinity), (100, infinity | 0x8000), (901, infinity | 1)] {
            data.bits[at] = bits;
            data.wide[at] = half.to_f32(bits);
        }
        let valid: Vec<u8> = (0..600 / 8).map(|i| if i % 10 == 3 { 0b1011_1111 } else { 0xff }).collect();
        let valid = || Some(Validity::new(&valid, 0));
        let (narrow, wide) = (columns(&data.bits, 3), columns(&data.wide, 3));
        let narrow = narrow.iter().map(|bits| Column::new([Chunk::from_half(half, bits, valid()).unwrap()]));
        let narrow: Features<'_, f32> = Features::new(narrow.collect()).unwrap();
        let wide = wide.iter().map(|values| Column::new([Chunk::new(values, valid()).unwrap()]));
        let wide = Features::new(wide.collect()).unwrap();
        let estimator = KMeans::new(5).seed(1);
        for estimator in here_and_on_gpu(&estimator) {
            let errors = [&narrow, &wide].map(|view| estimator.fit_features(view, None).unwrap_err().to_string());
            assert_eq!(errors[0], errors[1]);
            let skip = estimator.null_policy(NullPolicy::Skip);
            let [narrow, wide] = [&narrow, &wide].map(|view| skip.fit_features(view, None).unwrap());
            assert_eq!((hash(&narrow), narrow.expand().unwrap()), (hash(&wide), wide.expand().unwrap()));
        }
        assert!(Chunk::<f32>::from_half(half, &data.bits, Some(Validity::new(&[0xff], 0))).is_err());
        assert!(Features::<f32>::from_half_rows(half, &data.bits[1..], 3).is_err());
        assert!(Features::<f32>::from_half_rows(half, &data.bits, 0).is_err());
    }
}
