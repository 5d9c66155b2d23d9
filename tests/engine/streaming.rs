//! Rows that stream through the GPU in chunks give the same bits as rows that are all on the GPU, and as the CPU.

use polars_kmeans::InstructionSet;
use polars_kmeans::backend::chunking::Chunking;
use polars_kmeans::backend::cuda::memory;
use polars_kmeans::backend::select::Shape;
use polars_kmeans::base::params::DrawnCandidates;
use polars_kmeans::input::tile::RowBlock;
use polars_kmeans::{
    Chunk, Column, Device, Engine, Features, History, Init, KMeans, KMeansError, NullPolicy, Place, Restarts, SortBy, TooFew,
    Validity, Wanted,
};

use crate::data::{
    KINDS, Random, columns, from_columns, gpu, gpu_info, hash, on_gpu, rounds, rows, shape, some_cuts, some_rows, some_valid,
    some_weights, transformed,
};
use crate::half::{BOTH, Halves};

/// Memory limits under which the rows stream, from the smallest that is enough. Each gives another number of chunks or of
/// buffers.
pub fn limits(shape: Shape) -> Vec<Chunking> {
    let device = gpu_info();
    let least = memory::chunking(shape, &device, 0).expect_err("nothing fits in no memory");
    let resident = memory::resident_bytes(shape, &device, false);
    let mut all: Vec<Chunking> = Vec::new();
    for step in 0..200 {
        let room = least + resident.saturating_sub(least) / 200 * step;
        if room >= resident {
            break;
        }
        let chunking = memory::chunking(shape, &device, room).expect("as much as the least");
        if all.last().is_none_or(|last| (last.chunks, last.buffers) != (chunking.chunks, chunking.buffers)) {
            all.push(chunking);
        }
    }
    all
}

/// The shape of a round: registers and tiles, one and two arrays of labels, labels of one and two bytes, sums with and without
/// tables.
fn shape_of(round: u64, random: &mut Random) -> [usize; 3] {
    let (d, k) = match round % 8 {
        0 => (1 + random.below(4), 1 + random.below(20)),
        1 => (1 + random.below(12), 20 + random.below(100)),
        2 => (5 + random.below(8), 100 + random.below(200)),
        3 => (2, 254 + random.below(40)),
        4 => (13 + random.below(30), 1 + random.below(64)),
        5 => (40 + random.below(60), 65 + random.below(40)),
        6 => (4, 4),
        _ => (100, 1 + random.below(12)),
    };
    [k + 1_000 + random.below(if d > 30 { 5_000 } else { 16_000 }), d, k]
}

/// Returns how many streamed fits were compared.
fn check<T: Engine>(round: u64) -> usize {
    let random = &mut Random(11_000 + round);
    let [n, d, k] = shape_of(round, random);
    let kind = KINDS[random.below(KINDS.len())];
    let x: Vec<T> = rows(kind, n, d, random);
    let weights: Option<Vec<f64>> = match round / 8 % 3 {
        1 => Some(some_weights(n, random)),
        2 if random.below(2) == 0 => Some(vec![1.0; n]),
        _ => None,
    };
    let init = match random.below(5) {
        0 | 1 => Init::KMeansPlusPlus,
        2 => Init::Random,
        _ => Init::Given(some_rows(&x, d, k, 6, random)),
    };
    let estimator = KMeans::new(k)
        .init(init)
        .n_init(Restarts::Count(1 + random.below(3) as u32))
        .max_iter(1 + random.below(12) as u32)
        .tol([0.0, 1e-4][random.below(2)])
        .seed(random.next())
        .history(if random.below(4) == 0 { History::Full } else { History::Light });
    let estimator = estimator.sort_by(if round % 4 == 1 { SortBy::Size } else { SortBy::None });
    let estimator = transformed(estimator, round / 3, d);
    let Some(on_gpu) = on_gpu(&estimator) else { return 0 };
    let by_columns = columns(&x, d);
    let features = match random.below(3) {
        0 => from_columns(&by_columns),
        1 => Features::from_rows(&x, d).unwrap(),
        _ => {
            let step = 1 + random.below(n);
            let chunk = |values| Chunk::new(values, None).unwrap();
            Features::new(by_columns.iter().map(|c| Column::new(c.chunks(step).map(chunk))).collect()).unwrap()
        }
    };
    let column = weights.as_ref().map(|w| Column::from_slice(w));
    let brief = |estimator: &KMeans| {
        estimator
            .fit_features(&features, column.as_ref())
            .map(|fit| (hash(&fit), fit.choice.plan.chunking))
            .map_err(|e| e.to_string())
    };
    let on_cpu = brief(&estimator).map(|(hash, _)| hash);
    assert_eq!(brief(&on_gpu).map(|(hash, _)| hash), on_cpu);
    let all = limits(shape::<T>([n, d, k], weights.is_some()));
    // The smallest limit, the largest, and some between.
    let some: Vec<_> = all.iter().step_by(1 + all.len() / 4).chain(all.last()).collect();
    for chunking in &some {
        let what =
            format!("{kind}, round {round}: n {n}, d {d}, k {k}, {}, {} weights, {chunking:?}", T::NAME, weights.is_some());
        match brief(&on_gpu.clone().device_memory_limit(Some(chunking.room))) {
            Ok((hash, streamed)) => assert_eq!((Ok(hash), streamed), (on_cpu.clone(), Some(**chunking)), "{what}"),
            Err(error) => assert_eq!(Err(error), on_cpu, "{what}"),
        }
    }
    some.len()
}

in_both_types!(streamed_fits_have_the_bits_of_resident_ones, T, first in [0, 1_000] => {
    let compared: usize = (first..first + rounds(48) as u64).map(check::<T>).sum();
    println!("{compared} streamed fits compared");
    assert!(gpu().is_none() || compared >= 2 * rounds(48));
});

#[test]
fn fewer_clusters_and_several_fits_stream() {
    let (n, d, k) = (9_000, 3, 40);
    let x: Vec<f32> = rows("duplicates", n, d, &mut Random(17));
    let features = Features::from_rows(&x, d).unwrap();
    let estimator = KMeans::new(k).too_few(TooFew::Fewer).sort_by(SortBy::Feature("column_1".into()));
    let Some(on_gpu) = on_gpu(&estimator) else { return };
    let expected = estimator.fit_features(&features, None).unwrap();
    assert_eq!(expected.model.n_clusters(), 7);
    let several = [3, 40, 5];
    let each = |estimator: &KMeans| -> Vec<u64> {
        estimator.fit_each(&several, &features, None).unwrap().into_iter().map(|fit| hash(&fit.unwrap())).collect()
    };
    for chunking in limits(shape::<f32>([n, d, k], false)).iter().step_by(3) {
        let limited = on_gpu.clone().device_memory_limit(Some(chunking.room));
        let fit = limited.fit_features(&features, None).unwrap();
        assert_eq!(hash(&fit), hash(&expected), "{chunking:?}");
        assert_eq!(each(&limited), each(&estimator), "{chunking:?}");
    }
}

/// A fit that streams through as little memory as it can has the bits of the CPU.
fn check_least_memory<T: Engine>(init: &Init, way: u64, weighted: bool) {
    let random = &mut Random(12_000 + way);
    let [n, d, k] = if *init == Init::Optimal { [9_000, 1, 7] } else { [9_000, 5, 23] };
    let x: Vec<T> = rows("blobs", n, d, random);
    let weights: Vec<f64> = (0..n).map(|_| random.below(4) as f64).collect();
    let weights = weighted.then(|| Column::from_slice(&weights));
    let features = Features::from_rows(&x, d).unwrap();
    let candidates = match init {
        Init::KMeansParallel => DrawnCandidates { of_round: 2 * k as u64, rounds: 5, steps: 0 },
        Init::AfkMc2 => DrawnCandidates { of_round: k as u64, rounds: 0, steps: 0 },
        _ => DrawnCandidates::NONE,
    };
    let least = memory::chunking(Shape { candidates, ..shape::<T>([n, d, k], weighted) }, &gpu_info(), 0).unwrap_err();
    for sample in [None, Some(2_000)] {
        let estimator = KMeans::new(k).init(init.clone()).init_sample(sample).max_iter(6).seed(way);
        let estimator = transformed(estimator, way, d);
        let Some(on_gpu) = on_gpu(&estimator) else { return };
        let expected = estimator.device(Device::Cpu).fit_features(&features, weights.as_ref()).unwrap();
        let streamed = on_gpu.device_memory_limit(Some(least)).fit_features(&features, weights.as_ref()).unwrap();
        let what = format!("{init:?} of {sample:?}, way {way}, {}, weights: {weighted}", T::NAME);
        assert!(streamed.choice.plan.chunking.is_some_and(|chunking| chunking.chunks > 1), "{what}");
        assert_eq!(hash(&streamed), hash(&expected), "{what}");
    }
}

#[test]
fn every_seeding_streams_however_rows_arrive() {
    for init in [Init::KMeansPlusPlus, Init::Random, Init::KMeansParallel, Init::AfkMc2, Init::Optimal] {
        for way in [0, 1, 3, 5, 7, 9] {
            check_least_memory::<f32>(&init, way, way % 4 == 1);
            check_least_memory::<f64>(&init, way, way % 4 == 3);
        }
    }
}

#[test]
fn two_three_seven_and_many_chunks() {
    let (d, k, rows_of) = (4, 5, [7_000, 8_000, 12_000, 40_000]);
    let numbers: Vec<u64> =
        rows_of.iter().flat_map(|&n| limits(shape::<f32>([n, d, k], false))).map(|chunking| chunking.chunks).collect();
    for few in [2, 3, 7, 40] {
        assert!(numbers.contains(&few), "{few} of {numbers:?}");
    }
    let Some(device) = gpu() else { return };
    for n in rows_of {
        let x: Vec<f32> = rows("blobs", n, d, &mut Random(3));
        let features = Features::from_rows(&x, d).unwrap();
        let start = (0..k * d).map(|i| (i * 37 % 200) as f64 - 100.0).collect();
        for init in [Init::KMeansPlusPlus, Init::Random, Init::Given(start)] {
            let estimator = KMeans::new(k).seed(4).init(init).n_init(Restarts::Count(2)).device(device);
            let expected = hash(&estimator.fit_features(&features, None).unwrap());
            for chunking in limits(shape::<f32>([n, d, k], false)) {
                let fit = estimator.clone().device_memory_limit(Some(chunking.room)).fit_features(&features, None).unwrap();
                assert_eq!((hash(&fit), fit.choice.plan.chunking), (expected, Some(chunking)));
                assert!(fit.choice.reason.contains(&chunking.to_string()), "{}", fit.choice.reason);
            }
        }
    }
}

#[test]
fn skipped_rows_do_not_travel() {
    let Some(device) = gpu() else { return };
    let random = &mut Random(8);
    let (n, d, k) = (9_000, 3, 7);
    for (weighted, by_rows) in [(false, false), (true, false), (true, true)] {
        let mut x: Vec<f64> = rows("blobs", n, d, random);
        (0..300).for_each(|_| x[random.below(n * d)] = [f64::NAN, f64::INFINITY][random.below(2)]);
        let mut weights: Vec<f64> = (0..n).map(|_| if random.below(9) == 0 { 0.0 } else { random.unit() }).collect();
        (0..50).for_each(|_| weights[random.below(n)] = f64::NAN);
        let bitmap = some_valid(n, random);
        let by_columns = columns(&x, d);
        let features = if by_rows {
            Features::from_blocks([(&x[..], Some(Validity::new(&bitmap, 0)), None)], d).unwrap()
        } else {
            let column = |c| Column::new([Chunk::new(c, Some(Validity::new(&bitmap, 0))).unwrap()]);
            Features::new(by_columns.iter().map(|c| column(&c[..])).collect()).unwrap()
        };
        let weights = weighted.then(|| Column::from_slice(&weights[..]));
        for init in [Init::KMeansPlusPlus, Init::Random] {
            let estimator = KMeans::new(k).seed(6).init(init).n_init(Restarts::Count(2)).null_policy(NullPolicy::Skip);
            let expected = estimator.fit_features(&features, weights.as_ref()).unwrap();
            for chunking in limits(shape::<f64>([n, d, k], weighted)).into_iter().step_by(3) {
                let streamed = estimator.clone().device(device).device_memory_limit(Some(chunking.room));
                let fit = streamed.fit_features(&features, weights.as_ref()).unwrap();
                assert_eq!((hash(&fit), fit.choice.plan.chunking), (hash(&expected), Some(chunking)));
                assert_eq!(fit.expand().unwrap(), expected.expand().unwrap());
                let strict = streamed.null_policy(NullPolicy::Raise).fit_features(&features, weights.as_ref());
                assert!(matches!(strict, Err(KMeansError::NotFinite { .. })), "{:?}", strict.map(|fit| fit.choice));
            }
        }
    }
}

#[test]
fn parts_stream_as_one() {
    let Some(device) = gpu() else { return };
    let random = &mut Random(12);
    let (n, d, k) = (12_000, 5, 9);
    let x: Vec<f32> = rows("offset 1e6", n, d, random);
    let weights: Vec<f64> = (0..n).map(|_| random.unit()).collect();
    let by_columns = columns(&x, d);
    let (by_columns, by_rows) = (from_columns(&by_columns), Features::from_rows(&x, d).unwrap());
    let all = Column::from_slice(&weights);
    let estimator = KMeans::new(k).seed(2);
    let expected = hash(&estimator.fit_features(&by_rows, Some(&all)).unwrap());
    for chunking in limits(shape::<f32>([n, d, k], true)).into_iter().step_by(4) {
        let cuts = some_cuts(n, 5, random);
        let parts = cuts.windows(2).enumerate().map(|(i, w)| {
            let view = if i % 2 == 0 { &by_columns } else { &by_rows };
            RowBlock::new(view.slice(w[0]..w[1]).unwrap(), Some(Column::from_slice(&weights[w[0]..w[1]])))
        });
        let streamed = estimator.clone().device(device).device_memory_limit(Some(chunking.room));
        let fit = streamed.fit_parts(parts.collect(), InstructionSet::detect(), Wanted::Labels).unwrap();
        assert_eq!((hash(&fit), fit.choice.plan.chunking), (expected, Some(chunking)), "{cuts:?}");
    }
}

#[test]
fn several_fits_stream_at_a_time() {
    let Some(device) = gpu() else { return };
    let (n, d, k) = (30_000, 8, 6);
    let x: Vec<f32> = rows("uniform", n, d, &mut Random(1));
    let features = Features::from_rows(&x, d).unwrap();
    let estimator = KMeans::new(k).device(device).max_iter(10);
    let expected = hash(&estimator.fit_features(&features, None).unwrap());
    let all = limits(shape::<f32>([n, d, k], false));
    std::thread::scope(|scope| {
        for thread in 0..12 {
            let (estimator, features, all) = (&estimator, &features, &all);
            scope.spawn(move || {
                for chunking in all.iter().skip(thread % 3).step_by(3) {
                    let fit = estimator.clone().device_memory_limit(Some(chunking.room)).fit_features(features, None).unwrap();
                    assert_eq!(hash(&fit), expected);
                }
            });
        }
    });
}

#[test]
fn too_little_memory_says_what_is_needed() {
    let x: Vec<f32> = rows("blobs", 5_000, 4, &mut Random(5));
    let features = Features::from_rows(&x, 4).unwrap();
    let fit = |device, limit| KMeans::new(3).device(device).device_memory_limit(Some(limit)).fit_features(&features, None);
    for device in [Device::Auto, Device::Cpu, Device::Cuda(None)] {
        let error = fit(device, 0).unwrap_err();
        let text = "device_memory_limit: expected a positive number of bytes, or none for what is free, got 0";
        assert_eq!(error.to_string(), text);
    }
    // `Auto` keeps a small fit on the CPU, and then the limit does not matter.
    assert_eq!(fit(Device::Auto, 1).unwrap().choice.place, Place::Cpu);
    let Some(device) = gpu() else { return };
    let needed = memory::chunking(shape::<f32>([5_000, 4, 3], false), &gpu_info(), 0).unwrap_err();
    for limit in [1, 1_000, needed - 1] {
        let error = fit(device, limit).unwrap_err();
        assert!(matches!(error, KMeansError::NoMemory { .. }));
        let text = error.to_string();
        assert!(text.contains(" in chunks on cuda:") && text.contains("device_memory_limit allows"), "{text}");
    }
    assert!(fit(device, needed).unwrap().choice.plan.chunking.is_some());
}

/// Rows of 16 bits a value stream as such: chunks of as many bytes have twice as many rows.
#[test]
fn rows_of_16_bits_stream() {
    for (round, half) in BOTH.into_iter().cycle().take(6).enumerate() {
        let random = &mut Random(70 + round as u64);
        let [n, d, k] = [[30_000, 4, 6], [12_000, 30, 20], [9_000, 8, 150]][round / 2];
        let data = Halves::new(half, "blobs", n, d, random);
        // Rows that are given twice make empty clusters.
        let given = || Init::Given(some_rows(&data.wide, d, k, 3, &mut Random(round as u64)));
        let init = [Init::KMeansPlusPlus, given(), Init::Random][round % 3].clone();
        let estimator = KMeans::new(k).init(init).max_iter(4).seed(9);
        let Some(on_gpu) = on_gpu(&estimator) else { return };
        let narrow = columns(&data.bits, d);
        let [by_rows, wide] = data.by_rows();
        let by_columns = Features::from_half_columns(half, narrow.iter().map(|c| &c[..])).unwrap();
        let expected = hash(&estimator.fit_features(&wide, None).unwrap());
        let all = limits(Shape { half: true, ..shape::<f32>([n, d, k], false) });
        for chunking in all.iter().step_by(1 + all.len() / 3) {
            for view in [&by_rows, &by_columns] {
                let fit = on_gpu.clone().device_memory_limit(Some(chunking.room)).fit_features(view, None).unwrap();
                assert_eq!(fit.choice.plan.chunking, Some(*chunking), "{half:?}, {n} x {d} into {k}");
                assert_eq!(hash(&fit), expected, "{half:?}, {n} x {d} into {k}: {chunking}");
            }
        }
    }
}
