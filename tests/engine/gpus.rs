//! Fits on several GPUs: the bits are those of the CPU, however the rows are shared. A machine with one GPU gives it several shares.

use polars_kmeans::{Column, Device, Engine, Features, Gpus, KMeans, KMeansError, NullPolicy, Place, RowOrder, Strategy};

use crate::data::{KINDS, Random, brief, columns, from_columns, from_some, gpu, hash, rounds, rows, some_weights, transformed};
use crate::gpu::{any_fit, shape};

/// The ways to share rows that this machine can show: every number of a GPU is there.
fn ways() -> Vec<Device> {
    if gpu().is_none() {
        return Vec::new();
    }
    let there = polars_kmeans::devices().expect("a GPU").iter().filter(|device| device.usable).count() as u32;
    let last = there - 1;
    let lists = [&[0, 0][..], &[0, last], &[0, 0, last], &[0, last, last, last, 0, last, 0]];
    lists.iter().map(|list| Device::Several(Gpus::new(list).expect("a few"))).chain([Device::AllCuda]).collect()
}

/// Whether GPUs have clusters of their own even where sums are small.
fn let_own_clusters(always: bool) {
    #[cfg(all(feature = "cuda", feature = "tests"))]
    polars_kmeans::backend::cuda::ALWAYS_OWN_CLUSTERS.store(always, std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(all(feature = "cuda", feature = "tests")))]
    let _ = always;
}

/// Returns whether there was a fit to compare.
fn check<T: Engine>(round: u64, device: Device) -> bool {
    let random = &mut Random(90_000 + round);
    let [n, d, k] = shape(round, random);
    // Some clusters are empty at first, and take rows of any GPU.
    let (kind, x, estimator) = any_fit::<T>([n, d, k], random);
    let weights = (round % 3 == 1).then(|| some_weights(n, random));
    let estimator = transformed(estimator, round / 2, d);
    let features = Features::from_rows(&x, d).unwrap();
    let weights = weights.as_ref().map(|w| Column::from_slice(w));
    let [several, cpu] =
        [device, Device::Cpu].map(|device| brief(&estimator.clone().device(device).fit_features(&features, weights.as_ref())));
    assert_eq!(several, cpu, "{device}, {kind}, round {round}: n {n}, d {d}, k {k}, {}", T::NAME);
    cpu.is_ok()
}

#[test]
fn several_gpus_give_the_bits_of_the_cpu() {
    let ways = ways();
    let rounds = if ways.is_empty() { 0 } else { rounds(72) };
    let answered: usize = (0..rounds as u64)
        .map(|round| {
            let device = ways[round as usize % ways.len()];
            // Other tests may run meanwhile. Their bits are the same.
            let_own_clusters(round / ways.len() as u64 % 2 == 1);
            usize::from(check::<f32>(round, device)) + usize::from(check::<f64>(round + 500, device))
        })
        .sum();
    let_own_clusters(false);
    println!("{answered} of {} fits compared", 2 * rounds);
    assert!(answered * 3 >= rounds * 2, "only {answered} fits had an answer");
}

/// Sums of 17 MB. GPUs that reach each other's memory have clusters of their own, and then give rows to empty clusters.
#[test]
fn gpus_have_clusters_where_sums_are_large() {
    let random = &mut Random(9);
    let [n, d, k] = [30_000, 256, 4_100];
    let x: Vec<f32> = rows(KINDS[0], n, d, random);
    let features = Features::from_rows(&x, d).unwrap();
    let weights = some_weights(n, random);
    for weights in [None, Some(Column::from_slice(&weights))] {
        let estimator = from_some(&x, d, k, 9, random).max_iter(5);
        let fit = |device| hash(&estimator.clone().device(device).fit_features(&features, weights.as_ref()).unwrap());
        let ways = ways();
        let cpu = if ways.is_empty() { 0 } else { fit(Device::Cpu) };
        ways.into_iter().for_each(|device| assert_eq!(fit(device), cpu, "{device}"));
    }
}

#[test]
fn rows_stream_through_several_gpus() {
    let random = &mut Random(5);
    let [n, d, k] = [400_000, 32, 13];
    let x: Vec<f32> = rows(KINDS[0], n, d, random);
    let estimator = from_some(&x, d, k, 4, random).max_iter(9);
    let features = Features::from_rows(&x, d).unwrap();
    let cpu = hash(&estimator.clone().device(Device::Cpu).fit_features(&features, None).unwrap());
    for device in ways() {
        let limited = estimator.clone().device(device).device_memory_limit(Some(12_000_000));
        let fit = limited.fit_features(&features, None).unwrap();
        assert_eq!(hash(&fit), cpu, "{device}: {}", fit.choice.reason);
        let several = matches!(fit.choice.place, Place::Several(_));
        let streams = |share: &polars_kmeans::Share| share.plan.chunking.is_some();
        assert!(!several || fit.choice.shares.iter().any(streams), "{device}: {}", fit.choice.reason);
    }
}

#[test]
fn a_share_may_lose_all_its_rows() {
    // The first rows are all bad, so the first share is empty. Later, few rows are left for each.
    let random = &mut Random(6);
    let [n, d] = [40, 3];
    // Rows that are sorted are fewer than those that were shared out.
    for (bad, order) in [(20, RowOrder::Given), (38, RowOrder::Given), (38, RowOrder::Values)] {
        let mut x: Vec<f64> = rows(KINDS[0], n, d, random);
        x[..bad * d].fill(f64::NAN);
        let features = Features::from_rows(&x, d).unwrap();
        let estimator = KMeans::new(2).null_policy(NullPolicy::Skip).row_order(order);
        let cpu = estimator.clone().device(Device::Cpu).fit_features(&features, None).unwrap();
        for device in ways() {
            let fit = estimator.clone().device(device).fit_features(&features, None).unwrap();
            assert_eq!(hash(&fit), hash(&cpu), "{device}");
        }
        let refused = |device| KMeans::new(2).device(device).fit_features(&features, None).err();
        for device in ways() {
            assert_eq!(refused(device), refused(Device::Cpu), "{device}");
        }
    }
}

#[test]
fn predictions_come_from_several_gpus() {
    let random = &mut Random(7);
    let [n, d, k] = [30_000, 6, 40];
    let mut x: Vec<f32> = rows(KINDS[0], n, d, random);
    let model = KMeans::new(k).device(Device::Cpu).fit_features(&Features::from_rows(&x, d).unwrap(), None).unwrap().model;
    x[7 * d] = f32::NAN;
    x[(n - 3) * d + 1] = f32::INFINITY;
    let by_columns = columns(&x, d);
    let features = from_columns(&by_columns);
    let cpu = model.on(Device::Cpu);
    for device in ways() {
        let several = model.on(device);
        assert_eq!(several.predict(&features).unwrap(), cpu.predict(&features).unwrap(), "{device}");
        assert_eq!(several.predict_distances(&features).unwrap(), cpu.predict_distances(&features).unwrap(), "{device}");
        for squared in [false, true] {
            let bits = |distances: Vec<f64>| distances.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            let distances = bits(several.transform(&features, squared).unwrap());
            assert_eq!(distances, bits(cpu.transform(&features, squared).unwrap()), "{device}");
        }
        assert_eq!(several.score(&features, None).unwrap().to_bits(), cpu.score(&features, None).unwrap().to_bits());
    }
}

#[test]
fn named_kernels_run_on_several_gpus() {
    let random = &mut Random(8);
    let [n, d, k] = [9_000, 24, 70];
    let x: Vec<f32> = rows(KINDS[0], n, d, random);
    let features = Features::from_rows(&x, d).unwrap();
    let estimator = from_some(&x, d, k, 9, random).max_iter(6);
    let cpu = hash(&estimator.clone().device(Device::Cpu).fit_features(&features, None).unwrap());
    for device in ways() {
        for &strategy in Strategy::ALL {
            match estimator.clone().device(device).strategy(strategy).fit_features(&features, None) {
                Ok(fit) => assert_eq!(hash(&fit), cpu, "{device}, {strategy}"),
                // Some do not support the shape.
                Err(error) => assert!(matches!(error, KMeansError::InvalidOption { .. }), "{device}, {strategy}: {error}"),
            }
        }
    }
}

#[test]
fn devices_that_are_not_there_are_refused() {
    let x = [0.0f32, 1.0, 2.0];
    let features = Features::from_rows(&x, 1).unwrap();
    let missing = Device::Several(Gpus::new(&[0, 4_000]).unwrap());
    for device in [Some(missing), gpu().is_none().then_some(Device::AllCuda)].into_iter().flatten() {
        let error = KMeans::new(2).device(device).fit_features(&features, None).unwrap_err();
        assert!(
            matches!(&error, KMeansError::DeviceNotAvailable { requested, .. } if *requested == device.to_string()),
            "{error}"
        );
    }
    for text in ["cuda:0,", "cuda:0,1", "cuda:,cuda:1", "cuda:all,cuda:0", "cuda:+1,cuda:2"] {
        assert!(text.parse::<Device>().is_err(), "{text}");
    }
    for text in ["cuda:all", "cuda:0,cuda:1", "cuda:3,cuda:3"] {
        assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
    }
}
