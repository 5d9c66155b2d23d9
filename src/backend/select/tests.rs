//! Tests of the choice of a place, with invented devices.

use std::ops::Range;

use super::*;
use crate::backend::cuda::memory;
use crate::base::params::DrawnCandidates;

const GB: u64 = 1_000_000_000;
const LARGE: Shape = Shape {
    job: Job::Fit,
    rows: 1_000_000,
    features: 32,
    clusters: 256,
    float64: false,
    half: false,
    weighted: false,
    candidates: DrawnCandidates::NONE,
    priced: false,
};
const SMALL: Shape = Shape { rows: 2_000, features: 2, clusters: 3, float64: true, ..LARGE };

pub fn device(ordinal: u32, free: u64) -> DeviceInfo {
    let (usable, reason) = usable((13, 0), (9, 0), "90a");
    DeviceInfo {
        ordinal,
        name: "NVIDIA H200".into(),
        memory_free: free,
        memory_total: 150 * GB,
        multiprocessors: 132,
        shared_per_block: 227 << 10,
        compute_capability: (9, 0),
        driver: (13, 0),
        usable,
        reason,
    }
}

fn old(ordinal: u32) -> DeviceInfo {
    let (usable, reason) = usable((13, 0), (6, 1), "90a");
    DeviceInfo { name: "GTX 1080".into(), usable, reason, ..device(ordinal, 200 * GB) }
}

fn within(device: Device, limit: Option<u64>) -> DeviceRequest {
    DeviceRequest { limit, ..device.into() }
}

/// Where a job runs, and why. The sentence about the kernel is left out.
fn chosen(requested: Device, shape: Shape, devices: &Devices) -> (Place, String) {
    let choice = choose(requested.into(), shape, devices).unwrap();
    let (why, kernel) = choice.reason.split_once("; its kernel is ").unwrap_or((&choice.reason, ""));
    assert_eq!(kernel.is_empty(), choice.place == Place::Cpu || shape.job != Job::Fit, "{}", choice.reason);
    (choice.place, why.into())
}

fn refused(requested: Device, shape: Shape, devices: &Devices) -> String {
    choose(requested.into(), shape, devices).unwrap_err().to_string()
}

/// The bytes that a job takes.
fn needed(shape: Shape) -> u64 {
    match shape.job {
        Job::Fit => memory::resident_bytes(shape, &device(0, GB), false),
        _ => memory::of_model(shape, (&device(0, GB)).into()),
    }
}

fn in_chunks(shape: Shape, room: u64) -> std::result::Result<Chunking, u64> {
    memory::chunking(shape, &device(0, GB), room)
}

unit_test!(the_kernel_is_named);
fn the_kernel_is_named() {
    let choice =
        |strategy| choose(DeviceRequest { strategy, ..Device::Cuda(None).into() }, LARGE, &Ok(vec![device(0, 100 * GB)]));
    let default = choice(Strategy::Default).unwrap();
    let why = format!("; its kernel is {}, which is predicted to be the fastest, with ", default.plan.strategy);
    assert!(default.reason.contains(&why) && default.reason.ends_with(" an iteration"), "{}", default.reason);
    let named = choice(Strategy::Tiled32).unwrap();
    assert!(named.reason.ends_with("; its kernel is tiled-32, as asked") && named.plan.strategy == Strategy::Tiled32);
    let error = choice(Strategy::RegistersSingle).unwrap_err().to_string();
    assert!(error.contains("at most 12 features for \"registers-single\", got 32"), "{error}");
}

unit_test!(the_cpu_is_always_there);
fn the_cpu_is_always_there() {
    let cpu = (Place::Cpu, "device=\"cpu\" was asked for".into());
    assert_eq!(chosen(Device::Cpu, LARGE, &Err("no driver".into())), cpu);
    assert_eq!(chosen(Device::Cpu, LARGE, &Ok(vec![device(0, 100 * GB)])), cpu);
}

unit_test!(auto_falls_back_and_says_why);
fn auto_falls_back_and_says_why() {
    let there = Ok(vec![device(0, 100 * GB)]);
    let (place, why) = chosen(Device::Auto, LARGE, &there);
    assert_eq!(place, Place::Cuda(0));
    let large = "1,000,000 rows x 32 features x 256 clusters are predicted to take 8.2 s on the CPU and 26 ms on";
    assert_eq!(why, format!("{large} cuda:0 (NVIDIA H200)"));

    let (place, why) = chosen(Device::Auto, SMALL, &there);
    assert_eq!(place, Place::Cpu);
    let small = "2,000 rows x 2 features x 3 clusters are predicted to take 12 us on the CPU";
    assert_eq!(why, format!("{small}: a GPU would take 3.0 ms, so none was looked for"));

    let none = Err("no NVIDIA driver".into());
    assert_eq!(chosen(Device::Auto, LARGE, &none), (Place::Cpu, "no GPU can be used: no NVIDIA driver".into()));
    let empty = (Place::Cpu, "no GPU can be used: the driver lists no GPU".into());
    assert_eq!(chosen(Device::Auto, LARGE, &Ok(vec![])), empty);
    let why = "no GPU can be used: cuda:0 (GTX 1080): its compute capability is 6.1, and at least 8.0 is needed";
    assert_eq!(chosen(Device::Auto, LARGE, &Ok(vec![old(0)])), (Place::Cpu, why.into()));

    let score = Shape { job: Job::Score, ..LARGE };
    let (place, why) = chosen(Device::Auto, score, &Ok(vec![device(0, GB / 100), device(1, GB / 70)]));
    assert_eq!(place, Place::Cpu);
    let full = "the data do not fit on a GPU: they need 140 MB on cuda:1 (NVIDIA H200), where 14 MB of 150 GB are free";
    assert_eq!(why, format!("{full} and a tenth of that stays so"));
}

unit_test!(the_work_must_pay_for_the_start_and_the_upload);
fn the_work_must_pay_for_the_start_and_the_upload() {
    let least = |shape: Shape| (1..1_000_000).find(|&rows| pays(Shape { rows, ..shape }, None)).unwrap();
    let [cpu, gpu] = seconds(Shape { rows: least(LARGE), ..LARGE }, None);
    assert!((cpu / gpu - GPU_MARGIN).abs() < 0.01, "{cpu} {gpu}");
    // Fewer clusters mean less work per value. float64 values take longer to upload.
    let two = Shape { clusters: 2, ..LARGE };
    assert!(least(LARGE) < least(two) && least(two) < least(Shape { float64: true, ..two }));
}

unit_test!(one_morsel_must_have_much_work);
fn one_morsel_must_have_much_work() {
    let morsel = |job, rows, features, clusters| Shape { job, rows, features, clusters, ..SMALL };
    for job in [Job::Labels, Job::Nearest, Job::Distances, Job::NearestClusters] {
        assert!(!pays(morsel(job, 100_000, 4, 16), None), "{job:?}");
        assert!(pays(morsel(job, 100_000, 256, 1_000), None), "{job:?}");
    }
    // A fit passes over its rows many times. A score is never a morsel.
    assert!(pays(morsel(Job::Fit, 100_000, 16, 64), None) && !pays(morsel(Job::Labels, 100_000, 16, 64), None));
    assert!(pays(morsel(Job::Score, 1_000_000, 16, 64), None) && !pays(morsel(Job::Labels, 1_000_000, 16, 64), None));
    let large = Shape { job: Job::Labels, rows: 10_000_000, ..LARGE };
    let why = "10,000,000 rows x 32 features x 256 clusters are predicted to take 4.1 s on the CPU and 83 ms on";
    let chosen = chosen(Device::Auto, large, &Ok(vec![device(0, GB)]));
    assert_eq!(chosen, (Place::Cuda(0), format!("{why} cuda:0 (NVIDIA H200)")));
}

unit_test!(predictions_take_bounded_memory);
fn predictions_take_bounded_memory() {
    let shape = |job, rows, features, clusters| Shape { job, rows, features, clusters, ..LARGE };
    let batch = |shape: Shape| shape.batches(true).take(4).map(|rows| rows.end - rows.start).max().unwrap_or(0);
    assert_eq!(batch(shape(Job::Labels, 1_000, 32, 256)), 1_000);
    assert_eq!(batch(shape(Job::Labels, 1 << 30, 12, 256)), (128 << 20) / 64);
    assert_eq!(batch(shape(Job::Nearest, 1 << 30, 8, 256)), (128 << 20) / 64);
    // Whole tiles of rows.
    assert_eq!(batch(shape(Job::Distances, 1 << 30, 2, 256)), (128 << 20) / (2 * 4 + 12 + 256 * 8) / 1_024 * 1_024);
    assert_eq!(batch(shape(Job::Distances, 1 << 30, 2, 1 << 31)), 1);
    assert_eq!(batch(shape(Job::Labels, 0, 2, 2)), 0);
    // The first batch is smaller. Every row is in one batch.
    let batches: Vec<Range<u64>> = shape(Job::Labels, 10_000_000, 12, 256).batches(true).collect();
    let quarter = (128 << 20) / 64 / 4;
    assert_eq!(
        batches,
        [
            0..quarter,
            quarter..5 * quarter,
            5 * quarter..9 * quarter,
            9 * quarter..13 * quarter,
            13 * quarter..17 * quarter,
            17 * quarter..10_000_000
        ]
    );
    let there: Vec<Range<u64>> = shape(Job::Labels, 3_000_000, 12, 256).batches(false).collect();
    assert_eq!(there, [0..4 * quarter, 4 * quarter..3_000_000]);
    for job in [Job::Labels, Job::Nearest, Job::Distances, Job::NearestClusters] {
        assert!(needed(shape(job, 1 << 40, 32, 256)) < 300 << 20, "{job:?}");
        assert!(needed(shape(job, u64::MAX, usize::MAX, usize::MAX)) > u64::MAX / 2);
    }
    assert!(needed(shape(Job::Score, 1 << 30, 32, 256)) > 100 * GB);
}

unit_test!(a_demand_takes_the_roomiest_or_the_one_named);
fn a_demand_takes_the_roomiest_or_the_one_named() {
    let devices = Ok(vec![old(0), device(3, 70 * GB), device(1, 90 * GB), device(2, 90 * GB)]);
    let (place, why) = chosen(Device::Cuda(None), SMALL, &devices);
    assert_eq!(place, Place::Cuda(1));
    let most = "cuda:1 (NVIDIA H200) has the most free memory of those that can be used";
    assert_eq!(why, format!("device=\"cuda\" was asked for, and {most}"));
    let third = (Place::Cuda(3), "device=\"cuda:3\" was asked for".into());
    assert_eq!(chosen(Device::Cuda(Some(3)), SMALL, &devices), third);
}

unit_test!(a_demand_that_cannot_be_met_says_what_there_is);
fn a_demand_that_cannot_be_met_says_what_there_is() {
    let help = " (device=\"auto\" takes the CPU where no GPU can be used)";
    let devices = Ok(vec![old(0), device(1, 90 * GB)]);
    assert_eq!(
        refused(Device::Cuda(Some(7)), SMALL, &devices),
        format!("device=\"cuda:7\" cannot be used: there is no cuda:7, only cuda:0 (GTX 1080), cuda:1 (NVIDIA H200){help}")
    );
    let capability = "cuda:0 (GTX 1080): its compute capability is 6.1, and at least 8.0 is needed";
    let error = format!("device=\"cuda:0\" cannot be used: {capability}{help}");
    assert_eq!(refused(Device::Cuda(Some(0)), SMALL, &devices), error);
    let error = format!("device=\"cuda\" cannot be used: {capability}{help}");
    assert_eq!(refused(Device::Cuda(None), SMALL, &Ok(vec![old(0)])), error);
    for requested in [Device::Cuda(None), Device::Cuda(Some(0))] {
        for (devices, why) in [(Err("no NVIDIA driver".into()), "no NVIDIA driver"), (Ok(vec![]), "the driver lists no GPU")] {
            let error = format!("device=\"{requested}\" cannot be used: {why}{help}");
            assert_eq!(refused(requested, SMALL, &devices), error);
        }
    }
}

unit_test!(data_that_do_not_fit_at_once_stream);
fn data_that_do_not_fit_at_once_stream() {
    // First there is room for some of the chunks, then for the fewest, then not even for those.
    let shape = Shape { rows: 100_000_000, ..LARGE };
    let there = Ok(vec![device(0, 4 * GB)]);
    for requested in [Device::Auto, Device::Cuda(None), Device::Cuda(Some(0))] {
        let choice = choose(requested.into(), shape, &there).unwrap();
        let chunking = choice.plan.chunking.unwrap();
        assert_eq!((choice.place, chunking), (Place::Cuda(0), in_chunks(shape, 4 * GB - 4 * GB / 10).unwrap()));
        assert!(choice.reason.contains(&format!("; {chunking}; its kernel is ")), "{}", choice.reason);
        let limited = choose(within(requested, Some(2 * GB)), shape, &there).unwrap().plan.chunking.unwrap();
        assert_eq!(limited, in_chunks(shape, 2 * GB).unwrap());
        assert!(limited.buffers < chunking.buffers && limited.room == 2 * GB);
        // A limit above the free memory changes nothing.
        assert_eq!(choose(within(requested, Some(9 * GB)), shape, &there).unwrap(), choice);
        assert_eq!(choose(within(requested, Some(GB)), LARGE, &there).unwrap().plan.chunking, None);
    }
    // The time of an iteration is that of all chunks, so it is at least that of all rows at once.
    let time = |free: u64| {
        let choice = choose(Device::Cuda(None).into(), shape, &Ok(vec![device(0, free)])).unwrap();
        let said = choice.reason.rsplit_once("with ").unwrap().1.strip_suffix(" an iteration").unwrap().to_owned();
        let (number, unit) = said.split_once(' ').unwrap();
        number.parse::<f64>().unwrap() * if unit == "s" { 1e3 } else { 1.0 }
    };
    assert!(time(4 * GB) > 0.9 * time(100 * GB), "{} {}", time(4 * GB), time(100 * GB));
    // With few clusters, sending the rows over the bus does not pay.
    let few = Shape { clusters: 4, ..shape };
    assert!(choose(Device::Auto.into(), few, &Ok(vec![device(0, 100 * GB)])).unwrap().place == Place::Cuda(0));
    let choice = choose(Device::Auto.into(), few, &there).unwrap();
    assert!(choice.place == Place::Cpu && choice.plan.chunking.is_none());
    assert!(choice.reason.contains("on a GPU, which would not pay: the rows do not fit there and stream"), "{}", choice.reason);
    // There is room, but kernels cannot count this many rows.
    let many = Shape { rows: 1 << 33, features: 1, clusters: 2, ..LARGE };
    let chunking = choose(Device::Cuda(None).into(), many, &Ok(vec![device(0, 300 * GB)])).unwrap().plan.chunking.unwrap();
    assert_eq!(chunking.buffers, chunking.chunks);
}

unit_test!(several_gpus_share_rows);
fn several_gpus_share_rows() {
    let two = Ok(vec![device(0, 100 * GB), device(1, 100 * GB)]);
    let list = |ordinals: &[u32]| Device::Several(Gpus::new(ordinals).unwrap());
    let shares = |requested: Device, shape: Shape, devices: &Devices| -> Vec<(u32, u64)> {
        let choice = choose(requested.into(), shape, devices).unwrap();
        choice.shares.iter().map(|share| (share.ordinal, share.rows)).collect()
    };
    let rows = LARGE.rows;
    assert_eq!(shares(Device::AllCuda, LARGE, &two), [(0, rows / 2), (1, rows / 2)]);
    assert_eq!(shares(list(&[1, 0, 1]), LARGE, &two), [(1, 333_333), (0, 333_333), (1, 333_334)]);
    // Rows go by speed. A GPU with less than its share of the memory gets fewer.
    let slow = DeviceInfo { multiprocessors: 66, ..device(1, 100 * GB) };
    assert_eq!(shares(Device::AllCuda, LARGE, &Ok(vec![device(0, 100 * GB), slow])), [(0, 666_666), (1, 333_334)]);
    let much = Shape { rows: 200_000_000, ..LARGE };
    let uneven = Ok(vec![device(0, 12 * GB), device(1, 100 * GB)]);
    let choice = choose(Device::AllCuda.into(), much, &uneven).unwrap();
    assert!(choice.shares.iter().all(|share| share.plan.chunking.is_none()), "{}", choice.reason);
    assert!(
        choice.shares[0].rows < choice.shares[1].rows && choice.shares.iter().map(|share| share.rows).sum::<u64>() == much.rows
    );
    // Where nothing helps, both stream.
    let small = Ok(vec![device(0, 2 * GB), device(1, 2 * GB)]);
    let choice = choose(Device::AllCuda.into(), much, &small).unwrap();
    assert!(choice.shares.iter().all(|share| share.plan.chunking.is_some()), "{}", choice.reason);
    // One GPU, or one that can be used, needs no sharing. Nor does a list of one.
    for devices in [vec![device(0, 100 * GB)], vec![old(1), device(0, 100 * GB)]] {
        let choice = choose(Device::AllCuda.into(), LARGE, &Ok(devices)).unwrap();
        assert_eq!((choice.place, choice.shares), (Place::Cuda(0), vec![]));
    }
    // A single row has one GPU.
    let one = Shape { rows: 1, clusters: 1, ..LARGE };
    assert!(matches!(choose(Device::AllCuda.into(), one, &two).unwrap().place, Place::Cuda(_)));
    let missing = choose(list(&[0, 2]).into(), LARGE, &two).unwrap_err().to_string();
    assert!(missing.contains("device=\"cuda:0,cuda:2\" cannot be used: there is no cuda:2, only cuda:0"), "{missing}");
    // Predictions use all, a score one.
    let place = |job| choose(Device::AllCuda.into(), Shape { job, ..LARGE }, &two).unwrap().place;
    assert_eq!((place(Job::Labels), place(Job::Score)), (Place::Several(Gpus::new(&[0, 1]).unwrap()), Place::Cuda(0)));
}

unit_test!(auto_takes_several_gpus_where_that_pays);
fn auto_takes_several_gpus_where_that_pays() {
    let two = Ok(vec![device(0, 140 * GB), device(1, 140 * GB)]);
    let seeded = |rows, features, clusters, steps| {
        let candidates = DrawnCandidates { steps, ..DrawnCandidates::NONE };
        choose(Device::Auto.into(), Shape { rows, features, clusters, candidates, ..LARGE }, &two).unwrap().place
    };
    let place = |rows, features, clusters| seeded(rows, features, clusters, 0);
    let both = Place::Several(Gpus::new(&[0, 1]).unwrap());
    assert_eq!(place(134_217_728, 4, 64), both);
    assert_eq!(place(16_777_216, 128, 4_096), both);
    assert_eq!(place(4_000_000, 480, 40_000), both);
    // So short, or with so many sums, that one is as fast or faster.
    assert_eq!(place(10_000_000, 2, 1_000), Place::Cuda(0));
    assert_eq!(place(50_000, 408, 500), Place::Cuda(0));
    assert_eq!(place(1_000_000, 16, 256), Place::Cuda(0));
    // One GPU does the steps of k-means++, which take most of such a fit.
    assert_eq!(place(300_000, 408, 5_000), both);
    assert_eq!(seeded(300_000, 408, 5_000, 5_000), Place::Cuda(0));
}

unit_test!(data_that_do_not_fit_where_they_must_are_no_memory);
fn data_that_do_not_fit_where_they_must_are_no_memory() {
    let there = Ok(vec![device(0, GB / 500)]);
    let needed = bytes(in_chunks(LARGE, 0).unwrap_err());
    for requested in [Device::Cuda(None), Device::Cuda(Some(0))] {
        for (limit, why) in [
            (None, "2.0 MB of 150 GB are free and a tenth of that stays so"),
            (Some(10 * GB), "2.0 MB of 150 GB are free and a tenth of that stays so"),
            (Some(1_500_000), "device_memory_limit allows 1.5 MB"),
        ] {
            let there = if limit == Some(1_500_000) { Ok(vec![device(0, GB)]) } else { there.clone() };
            let error = choose(within(requested, limit), LARGE, &there).unwrap_err();
            assert!(matches!(error, KMeansError::NoMemory { .. }));
            let what = format!("{needed} in chunks on cuda:0 (NVIDIA H200), where {why}");
            assert_eq!(error.to_string(), format!("memory: expected room for {what}, got none"));
            // If no GPU is demanded, the CPU does the work.
            let choice = choose(within(Device::Auto, limit), LARGE, &there).unwrap();
            assert_eq!((choice.place, choice.reason), (Place::Cpu, format!("the data do not fit on a GPU: they need {what}")));
        }
    }
}

unit_test!(memory_counts_features_rows_weights_and_tables);
fn memory_counts_features_rows_weights_and_tables() {
    // A row: its values, the labels before and after, its place in the list of rows in doubt. While seeds are drawn: its
    // distance, and its share of the list of rows that come nearer.
    let more = |shape: Shape, from: u64, on: &DeviceInfo| {
        let of = |rows| memory::resident_bytes(Shape { rows, ..shape }, on, false);
        (of(shape.rows) - of(from)) / (shape.rows - from)
    };
    // Its tensor cores are not expected to pay for these shapes.
    let older = DeviceInfo { compute_capability: (8, 6), ..device(0, GB) };
    let of_rows = |shape| more(shape, 102_400, &older);
    let whole = Shape { rows: 1_024_000, clusters: 200, ..LARGE };
    assert_eq!(of_rows(whole), 32 * 4 + 1 + 1 + 8 + 8 + 3);
    assert_eq!(of_rows(Shape { float64: true, weighted: true, ..whole }), 32 * 8 + 8 + 1 + 1 + 8 + 8 + 3);
    assert_eq!(of_rows(Shape { clusters: 300, ..whole }), 32 * 4 + 2 + 2 + 8 + 8 + 3);
    // Tensor cores: 128 bytes of copies, 10 of its place, its group and its bound, and about 9 for lists of a few candidates. A quarter of
    // the rows has copies of twice as many bytes and 4 of their bound. Each row has 4 of its place there.
    let large = Shape { rows: 10_240_000, ..whole };
    assert_eq!(more(large, whole.rows, &device(0, GB)), 32 * 4 + 1 + 1 + 8 + 8 + 3 + 128 + 10 + 9 + (256 + 4) / 4 + 4);
    // In registers a label is overwritten, and there is no list.
    assert_eq!(of_rows(Shape { features: 4, clusters: 8, rows: 10_240_000, ..LARGE }), 4 * 4 + 1 + 8 + 3);
    // Absurd shapes do not make the arithmetic wrap.
    let absurd = Shape { rows: u64::MAX, features: usize::MAX, clusters: usize::MAX, ..SMALL };
    assert!(needed(absurd) > u64::MAX / 2);
    // Exactly nine tenths of the free memory.
    let needed = needed(LARGE);
    let enough = (needed / 9 * 10 - 20..).find(|free| free - free / 10 >= needed).unwrap();
    let chunking = |free| choose(Device::Cuda(None).into(), LARGE, &Ok(vec![device(0, free)])).unwrap().plan.chunking;
    assert_eq!(chunking(enough), None);
    assert!(chunking(enough - 1).is_some());
}

unit_test!(old_drivers_and_devices_are_not_usable);
fn old_drivers_and_devices_are_not_usable() {
    const ALL: &str = "80+ptx,86,89,90a,100,120";
    assert!(usable((13, 0), (8, 0), ALL).0 && usable((14, 2), (12, 1), ALL).0);
    let (no, why) = usable((12, 8), (9, 0), ALL);
    assert!(!no && why.contains("CUDA 12.8") && why.contains("CUDA 13.0") && why.contains("580"), "{why}");
    let (no, why) = usable((13, 0), (7, 5), ALL);
    assert!(!no && why.contains("7.5") && why.contains("8.0"), "{why}");
    let refused = |capability, architectures| {
        let (yes, why) = usable((13, 0), capability, architectures);
        assert_eq!(yes, !why.contains("POLARS_KMEANS_CUDA_ARCHS=all"), "{why}");
        !yes
    };
    assert!(refused((9, 0), "") && refused((8, 0), "90a") && refused((10, 0), "90a") && refused((8, 0), "86,90a"));
    assert!(!refused((9, 0), "90a") && !refused((8, 9), "86") && !refused((12, 1), "80+ptx") && !refused((9, 0), "80,90a"));
}
