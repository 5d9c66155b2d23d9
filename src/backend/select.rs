//! Where a fit or a prediction runs: a pure function of what is asked for, the shape of the data and the devices that there are.
//!
//! The results have the same bits everywhere, so that a wrong guess costs time and nothing else.

use std::fmt;

use crate::error::{KMeansError, Result};
use crate::params::Device;

/// The oldest CUDA version that a driver may be of: the kernels are compiled by its compiler.
pub const OLDEST_DRIVER: (u32, u32) = (13, 0);
/// The oldest compute capability that the kernels are compiled for.
pub const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

// The cost model. Rough on purpose: it must tell milliseconds from seconds, and it leans to the CPU.
/// Iterations of a fit, which nobody knows beforehand.
const ITERATIONS: f64 = 20.0;
/// Multiply-adds a second of a few cores: between the measured 3e9 (d = k = 4) and 8e10 (d = 408, k = 500) of two.
const CPU_RATE: f64 = 2e10;
/// Multiply-adds a second of a GPU, exact distances included.
const GPU_RATE: f64 = 1e13;
/// The same where all distances are float64: of a GPU between those of desktops (2e11) and of data centres (8e12).
const EXACT_CPU_RATE: f64 = 5e9;
const EXACT_GPU_RATE: f64 = 1e12;
/// Bytes a second from memory that is not pinned, over PCIe 4 or 5, and to fresh memory.
const UPLOAD_RATE: f64 = 20e9;
const DOWNLOAD_RATE: f64 = 5e9;
/// Seconds of launches, allocations and small copies.
const GPU_START: f64 = 3e-3;
/// A GPU must be predicted to be so many times faster than the CPU.
const GPU_MARGIN: f64 = 2.0;
/// The same for rows that may be one morsel of many, which the CPU takes on all its cores at a time and a GPU one after the other.
const MORSEL_MARGIN: f64 = 8.0;

/// Bytes on a GPU of the rows that a prediction takes at a time, results included.
const BATCH_BYTES: u64 = 256 << 20;

/// A GPU, as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, in the driver's count.
    pub ordinal: u32,
    pub name: String,
    /// Bytes that are free now.
    pub memory_free: u64,
    pub memory_total: u64,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// The CUDA version that the driver supports: major and minor.
    pub driver: (u32, u32),
    /// Whether fits can run there.
    pub usable: bool,
    /// Why, or why not.
    pub reason: String,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal, self.name)
    }
}

/// The devices that there are, usable or not; or why there is none at all.
pub type Devices = std::result::Result<Vec<DeviceInfo>, String>;

/// Whether the kernels run under a driver on a device; the text says why, or why not.
pub fn usable(driver: (u32, u32), capability: (u32, u32)) -> (bool, String) {
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let (oldest, has) = (version(OLDEST_DRIVER), version(driver));
    if driver < OLDEST_DRIVER {
        let what = format!("its driver supports CUDA {has}, and CUDA {oldest} is needed: update it to version 580 or newer");
        return (false, what);
    }
    let (oldest, is) = (version(OLDEST_CAPABILITY), version(capability));
    if capability < OLDEST_CAPABILITY {
        return (false, format!("its compute capability is {is}, and at least {oldest} is needed"));
    }
    (true, format!("compute capability {is} under a driver for CUDA {has}"))
}

/// What is done with the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    Fit,
    /// Labels under a model.
    Labels,
    /// Labels, and the distances to the nearest and to the second nearest centroid.
    Nearest,
    /// The distances to all centroids.
    Distances,
    Score,
}

/// What the cost depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub job: Job,
    pub rows: u64,
    pub features: usize,
    pub clusters: usize,
    /// Whether features are float64.
    pub float64: bool,
    pub weighted: bool,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, features, clusters) = (counted(self.rows), counted(self.features as u64), counted(self.clusters as u64));
        write!(f, "{rows} rows x {features} features x {clusters} clusters")
    }
}

impl Shape {
    /// Whether rows come in batches, each of which is sent, answered and forgotten.
    fn in_batches(&self) -> bool {
        !matches!(self.job, Job::Fit | Job::Score)
    }

    /// Bytes of results for one row.
    fn answer(&self) -> u64 {
        match self.job {
            Job::Fit | Job::Score => 0,
            Job::Labels => 4,
            Job::Nearest => 4 + 8 + 8,
            Job::Distances => (self.clusters as u64).saturating_mul(8),
        }
    }

    /// Bytes of one row on a GPU.
    fn row(&self) -> u64 {
        let size = if self.float64 { 8 } else { 4 };
        // A label of 4 bytes and a place in a list of 8.
        (self.features as u64).saturating_mul(size).saturating_add(self.answer()).saturating_add(12)
    }

    /// Rows that a prediction takes at a time on a GPU: one at least.
    pub fn batch(&self) -> u64 {
        (BATCH_BYTES / self.row()).max(1).min(self.rows)
    }
}

/// Where rows are fitted or labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Cpu,
    /// The GPU of this number.
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Where a fit or a prediction runs, and why there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub place: Place,
    /// A sentence to read, with figures where figures decided.
    pub reason: String,
}

/// Chooses among the devices of this machine, which are asked only if the answer depends on them: small fits and morsels, of which
/// there may be thousands a second, do not pay for it.
///
/// # Errors
/// As [`choose`].
pub fn place(requested: Device, shape: Shape) -> Result<Choice> {
    let matter = match requested {
        Device::Cpu => false,
        Device::Auto => pays(shape),
        Device::Cuda(_) => true,
    };
    choose(requested, shape, &if matter { super::devices() } else { Ok(Vec::new()) })
}

/// Chooses among these devices.
///
/// # Errors
/// [`KMeansError::DeviceNotAvailable`] if a GPU is demanded that is not there or cannot be used, and
/// [`KMeansError::NoMemory`] if the data do not fit there; never for [`Device::Auto`] and [`Device::Cpu`].
pub fn choose(requested: Device, shape: Shape, devices: &Devices) -> Result<Choice> {
    let asked = format!("device=\"{requested}\" was asked for");
    let cpu = |reason| Ok(Choice { place: Place::Cpu, reason });
    let not_available = |reason| KMeansError::DeviceNotAvailable { requested: requested.to_string(), reason };
    match requested {
        Device::Cpu => cpu(asked),
        Device::Auto => {
            let [on_cpu, on_gpu] = seconds(shape).map(duration);
            let predicted = |gpu: &str| format!("{shape} are predicted to take {on_cpu} on the CPU and {on_gpu} on {gpu}");
            if !pays(shape) {
                return cpu(predicted("a GPU, which would not pay"));
            }
            match roomiest(devices) {
                Err(why) => cpu(format!("no GPU can be used: {why}")),
                Ok(device) => match check_room(shape, device) {
                    Err(why) => cpu(format!("the data do not fit on a GPU: they need {why}")),
                    Ok(()) => Ok(Choice { place: Place::Cuda(device.ordinal), reason: predicted(&device.to_string()) }),
                },
            }
        }
        Device::Cuda(None) => {
            let device = roomiest(devices).map_err(not_available)?;
            on(device, shape, format!("{asked}, and {device} has the most free memory of those that can be used"))
        }
        Device::Cuda(Some(ordinal)) => {
            let devices = known(devices).map_err(not_available)?;
            let device = devices.iter().find(|device| device.ordinal == ordinal).ok_or_else(|| {
                let there: Vec<String> = devices.iter().map(ToString::to_string).collect();
                not_available(format!("there is no such GPU, only {}", there.join(", ")))
            })?;
            if !device.usable {
                return Err(not_available(format!("{device}: {}", device.reason)));
            }
            on(device, shape, asked)
        }
    }
}

/// A GPU that was demanded, if the data fit.
fn on(device: &DeviceInfo, shape: Shape, reason: String) -> Result<Choice> {
    check_room(shape, device).map_err(|what| KMeansError::NoMemory { what })?;
    Ok(Choice { place: Place::Cuda(device.ordinal), reason })
}

/// The devices, of which there is at least one; or why there is none.
fn known(devices: &Devices) -> std::result::Result<&[DeviceInfo], String> {
    match devices {
        Ok(devices) if devices.is_empty() => Err("the driver lists no GPU".into()),
        Ok(devices) => Ok(devices),
        Err(why) => Err(why.clone()),
    }
}

/// The usable device with the most free memory, then of the smallest number; or why there is none.
fn roomiest(devices: &Devices) -> std::result::Result<&DeviceInfo, String> {
    let devices = known(devices)?;
    let usable = devices.iter().filter(|device| device.usable);
    usable.min_by_key(|device| (std::cmp::Reverse(device.memory_free), device.ordinal)).ok_or_else(|| {
        let reasons: Vec<String> = devices.iter().map(|device| format!("{device}: {}", device.reason)).collect();
        reasons.join("; ")
    })
}

/// Bytes that rows take on a GPU: the features, labels and row lists, weights, and tables of the clusters.
pub fn bytes_needed(shape: Shape) -> u64 {
    let Shape { rows, features, clusters, float64, weighted, .. } = shape;
    let (features, clusters) = (features as u64, clusters as u64);
    let size = if float64 { 8 } else { 4 };
    if shape.in_batches() {
        // Rows are padded to whole blocks of 1,024; of the clusters there are the centroids, twice, and their copies for the filter.
        let padding = 1_024u64.saturating_mul(features).saturating_mul(size);
        let tables = clusters.saturating_mul(features).saturating_mul(2 * size + 4);
        return shape.batch().saturating_mul(shape.row()).saturating_add(padding).saturating_add(tables);
    }
    // A label of 4 bytes, a distance and a place in a list of 8 each.
    let row = 4 + 8 + 8 + if weighted { 8 } else { 0 };
    // Rows are padded to whole blocks of 256.
    let block = rows.saturating_mul(features).saturating_mul(size).saturating_add(255) & !255;
    // Sums in two limbs of 16 bytes, centroids, their copies for the filter, and partial tables.
    let tables = clusters.saturating_mul(features).saturating_mul(64);
    block.saturating_add(rows.saturating_mul(row)).saturating_add(tables)
}

/// The error says how much is needed, where, and what there is.
fn check_room(shape: Shape, device: &DeviceInfo) -> std::result::Result<(), String> {
    let needed = bytes_needed(shape);
    // A tenth is left to the context, to fragmentation and to whoever else is there.
    if needed <= device.memory_free - device.memory_free / 10 {
        return Ok(());
    }
    let (needed, free, total) = (bytes(needed), bytes(device.memory_free), bytes(device.memory_total));
    Err(format!("{needed} on {device}, where {free} of {total} are free and a tenth of that stays so"))
}

/// Seconds that it is predicted to take: on the CPU, and on a GPU.
fn seconds(shape: Shape) -> [f64; 2] {
    let values = shape.rows as f64 * shape.features as f64;
    let (passes, cpu_rate, gpu_rate) = match shape.job {
        Job::Fit => (ITERATIONS, CPU_RATE, GPU_RATE),
        Job::Labels | Job::Score => (1.0, CPU_RATE, GPU_RATE),
        Job::Nearest | Job::Distances => (1.0, EXACT_CPU_RATE, EXACT_GPU_RATE),
    };
    let work = values * shape.clusters as f64 * passes;
    let upload = values * if shape.float64 { 8.0 } else { 4.0 } / UPLOAD_RATE;
    let download = shape.rows as f64 * shape.answer() as f64 / DOWNLOAD_RATE;
    [work / cpu_rate, GPU_START + upload + work / gpu_rate + download]
}

/// Whether a GPU is predicted to be worth its while.
fn pays(shape: Shape) -> bool {
    let [cpu, gpu] = seconds(shape);
    gpu * if shape.in_batches() { MORSEL_MARGIN } else { GPU_MARGIN } < cpu
}

/// 1234567 as "1,234,567".
fn counted(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let comma = |i: usize| if i > 0 && (places - i).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(i, digit)| format!("{}{digit}", comma(i))).collect()
}

/// The largest unit of which there is at least one.
fn in_units(value: f64, units: &[(f64, &str)]) -> String {
    let (unit, name) = units.iter().find(|(unit, _)| value >= *unit).or(units.last()).copied().unwrap_or((1.0, ""));
    let value = value / unit;
    if value < 10.0 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

fn bytes(value: u64) -> String {
    in_units(value as f64, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

fn duration(seconds: f64) -> String {
    in_units(seconds, &[(3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;
    const LARGE: Shape = Shape { job: Job::Fit, rows: 1_000_000, features: 32, clusters: 256, float64: false, weighted: false };
    const SMALL: Shape = Shape { job: Job::Fit, rows: 2_000, features: 2, clusters: 3, float64: true, weighted: false };

    fn device(ordinal: u32, free: u64) -> DeviceInfo {
        let (usable, reason) = usable((13, 0), (9, 0));
        DeviceInfo {
            ordinal,
            name: "NVIDIA H200".into(),
            memory_free: free,
            memory_total: 150 * GB,
            compute_capability: (9, 0),
            driver: (13, 0),
            usable,
            reason,
        }
    }

    fn old(ordinal: u32) -> DeviceInfo {
        let (usable, reason) = usable((13, 0), (6, 1));
        DeviceInfo { name: "GTX 1080".into(), usable, reason, ..device(ordinal, 200 * GB) }
    }

    fn chosen(requested: Device, shape: Shape, devices: &Devices) -> (Place, String) {
        let choice = choose(requested, shape, devices).unwrap();
        (choice.place, choice.reason)
    }

    fn refused(requested: Device, shape: Shape, devices: &Devices) -> String {
        choose(requested, shape, devices).unwrap_err().to_string()
    }

    #[test]
    fn the_cpu_is_always_there() {
        let cpu = (Place::Cpu, "device=\"cpu\" was asked for".into());
        assert_eq!(chosen(Device::Cpu, LARGE, &Err("no driver".into())), cpu);
        assert_eq!(chosen(Device::Cpu, LARGE, &Ok(vec![device(0, 100 * GB)])), cpu);
    }

    #[test]
    fn auto_falls_back_and_says_why() {
        let there = Ok(vec![device(0, 100 * GB)]);
        let (place, why) = chosen(Device::Auto, LARGE, &there);
        assert_eq!(place, Place::Cuda(0));
        let large = "1,000,000 rows x 32 features x 256 clusters are predicted to take 8.2 s on the CPU and 26 ms on";
        assert_eq!(why, format!("{large} cuda:0 (NVIDIA H200)"));

        let (place, why) = chosen(Device::Auto, SMALL, &there);
        assert_eq!(place, Place::Cpu);
        let small = "2,000 rows x 2 features x 3 clusters are predicted to take 12 us on the CPU and 3.0 ms on";
        assert_eq!(why, format!("{small} a GPU, which would not pay"));

        let none = Err("no NVIDIA driver".into());
        assert_eq!(chosen(Device::Auto, LARGE, &none), (Place::Cpu, "no GPU can be used: no NVIDIA driver".into()));
        let empty = (Place::Cpu, "no GPU can be used: the driver lists no GPU".into());
        assert_eq!(chosen(Device::Auto, LARGE, &Ok(vec![])), empty);
        let why = "no GPU can be used: cuda:0 (GTX 1080): its compute capability is 6.1, and at least 8.0 is needed";
        assert_eq!(chosen(Device::Auto, LARGE, &Ok(vec![old(0)])), (Place::Cpu, why.into()));

        let (place, why) = chosen(Device::Auto, LARGE, &Ok(vec![device(0, GB / 10), device(1, GB / 7)]));
        assert_eq!(place, Place::Cpu);
        let full = "the data do not fit on a GPU: they need 149 MB on cuda:1 (NVIDIA H200), where 143 MB of 150 GB are free";
        assert_eq!(why, format!("{full} and a tenth of that stays so"));
    }

    #[test]
    fn the_work_must_pay_for_the_start_and_the_upload() {
        let least = |shape: Shape| (1..1_000_000).find(|&rows| pays(Shape { rows, ..shape })).unwrap();
        let [cpu, gpu] = seconds(Shape { rows: least(LARGE), ..LARGE });
        assert!((cpu / gpu - GPU_MARGIN).abs() < 0.01, "{cpu} {gpu}");
        // Fewer clusters are less work a value, float64 values are longer to upload.
        let two = Shape { clusters: 2, ..LARGE };
        assert!(least(LARGE) < least(two) && least(two) < least(Shape { float64: true, ..two }));
    }

    #[test]
    fn one_morsel_must_have_much_work() {
        let morsel = |job, rows, features, clusters| Shape { job, rows, features, clusters, ..SMALL };
        for job in [Job::Labels, Job::Nearest, Job::Distances] {
            assert!(!pays(morsel(job, 100_000, 4, 16)), "{job:?}");
            assert!(pays(morsel(job, 100_000, 256, 1_000)), "{job:?}");
        }
        // A fit goes over its rows again and again; a score is no morsel.
        assert!(pays(morsel(Job::Fit, 100_000, 16, 64)) && !pays(morsel(Job::Labels, 100_000, 16, 64)));
        assert!(pays(morsel(Job::Score, 1_000_000, 16, 64)) && !pays(morsel(Job::Labels, 1_000_000, 16, 64)));
        let large = Shape { job: Job::Labels, rows: 10_000_000, ..LARGE };
        let why = "10,000,000 rows x 32 features x 256 clusters are predicted to take 4.1 s on the CPU and 83 ms on";
        let chosen = chosen(Device::Auto, large, &Ok(vec![device(0, GB)]));
        assert_eq!(chosen, (Place::Cuda(0), format!("{why} cuda:0 (NVIDIA H200)")));
    }

    #[test]
    fn predictions_take_bounded_memory() {
        let shape = |job, rows, features, clusters| Shape { job, rows, features, clusters, ..LARGE };
        assert_eq!(shape(Job::Labels, 1_000, 32, 256).batch(), 1_000);
        assert_eq!(shape(Job::Labels, 1 << 30, 12, 256).batch(), (256 << 20) / 64);
        assert_eq!(shape(Job::Nearest, 1 << 30, 8, 256).batch(), (256 << 20) / 64);
        assert_eq!(shape(Job::Distances, 1 << 30, 2, 256).batch(), (256 << 20) / (2 * 4 + 12 + 256 * 8));
        assert_eq!(shape(Job::Distances, 1 << 30, 2, 1 << 31).batch(), 1);
        assert_eq!(shape(Job::Labels, 0, 2, 2).batch(), 0);
        for job in [Job::Labels, Job::Nearest, Job::Distances] {
            assert!(bytes_needed(shape(job, 1 << 40, 32, 256)) < 300 << 20, "{job:?}");
            assert!(bytes_needed(shape(job, u64::MAX, usize::MAX, usize::MAX)) > u64::MAX / 2);
        }
        assert!(bytes_needed(shape(Job::Score, 1 << 30, 32, 256)) > 100 * GB);
    }

    #[test]
    fn a_demand_takes_the_roomiest_or_the_one_named() {
        let devices = Ok(vec![old(0), device(3, 70 * GB), device(1, 90 * GB), device(2, 90 * GB)]);
        let (place, why) = chosen(Device::Cuda(None), SMALL, &devices);
        assert_eq!(place, Place::Cuda(1));
        let most = "cuda:1 (NVIDIA H200) has the most free memory of those that can be used";
        assert_eq!(why, format!("device=\"cuda\" was asked for, and {most}"));
        let third = (Place::Cuda(3), "device=\"cuda:3\" was asked for".into());
        assert_eq!(chosen(Device::Cuda(Some(3)), SMALL, &devices), third);
    }

    #[test]
    fn a_demand_that_cannot_be_met_says_what_there_is() {
        let help = " (device=\"auto\" takes the CPU where no GPU can be used)";
        let devices = Ok(vec![old(0), device(1, 90 * GB)]);
        assert_eq!(
            refused(Device::Cuda(Some(7)), SMALL, &devices),
            format!(
                "device=\"cuda:7\" cannot be used: there is no such GPU, only cuda:0 (GTX 1080), cuda:1 (NVIDIA H200){help}"
            )
        );
        let capability = "cuda:0 (GTX 1080): its compute capability is 6.1, and at least 8.0 is needed";
        let error = format!("device=\"cuda:0\" cannot be used: {capability}{help}");
        assert_eq!(refused(Device::Cuda(Some(0)), SMALL, &devices), error);
        let error = format!("device=\"cuda\" cannot be used: {capability}{help}");
        assert_eq!(refused(Device::Cuda(None), SMALL, &Ok(vec![old(0)])), error);
        for requested in [Device::Cuda(None), Device::Cuda(Some(0))] {
            for (devices, why) in
                [(Err("no NVIDIA driver".into()), "no NVIDIA driver"), (Ok(vec![]), "the driver lists no GPU")]
            {
                let error = format!("device=\"{requested}\" cannot be used: {why}{help}");
                assert_eq!(refused(requested, SMALL, &devices), error);
            }
        }
    }

    #[test]
    fn data_that_do_not_fit_where_they_must_are_no_memory() {
        let there = Ok(vec![device(0, GB / 10)]);
        for requested in [Device::Cuda(None), Device::Cuda(Some(0))] {
            let error = choose(requested, LARGE, &there).unwrap_err();
            assert!(matches!(error, KMeansError::NoMemory { .. }));
            let what = "149 MB on cuda:0 (NVIDIA H200), where 100 MB of 150 GB are free and a tenth of that stays so";
            assert_eq!(error.to_string(), format!("memory: expected room for {what}, got none"));
        }
    }

    #[test]
    fn memory_counts_features_rows_weights_and_tables() {
        let tables = 32 * 256 * 64;
        assert_eq!(bytes_needed(LARGE), 1_000_000 * (32 * 4 + 20) + tables);
        assert_eq!(bytes_needed(Shape { float64: true, weighted: true, ..LARGE }), 1_000_000 * (32 * 8 + 28) + tables);
        assert_eq!(bytes_needed(SMALL), 2_000 * 16 + 2_000 * 20 + 2 * 3 * 64);
        assert_eq!(bytes_needed(Shape { rows: 1, features: 1, clusters: 1, ..LARGE }), 256 + 20 + 64);
        // Absurd shapes do not wrap.
        let absurd = Shape { rows: u64::MAX, features: usize::MAX, clusters: usize::MAX, ..SMALL };
        assert!(bytes_needed(absurd) > u64::MAX / 2);
        // Exactly nine tenths of what is free.
        let needed = bytes_needed(LARGE);
        let enough = needed + needed / 9 + 1;
        assert!(check_room(LARGE, &device(0, enough)).is_ok());
        assert!(check_room(LARGE, &device(0, enough - 2)).is_err());
    }

    #[test]
    fn old_drivers_and_devices_are_not_usable() {
        assert!(usable((13, 0), (8, 0)).0 && usable((14, 2), (12, 1)).0);
        let (no, why) = usable((12, 8), (9, 0));
        assert!(!no && why.contains("CUDA 12.8") && why.contains("CUDA 13.0") && why.contains("580"), "{why}");
        let (no, why) = usable((13, 0), (7, 5));
        assert!(!no && why.contains("7.5") && why.contains("8.0"), "{why}");
    }

    #[test]
    fn figures_read_well() {
        assert_eq!([7, 999, 1_000, 1_234_567].map(counted), ["7", "999", "1,000", "1,234,567"]);
        assert_eq!([12, 1_500, 149_000_000, 3_000_000_000_000].map(bytes), ["12 B", "1.5 kB", "149 MB", "3.0 TB"]);
        assert_eq!([2e-7, 0.0123, 8.2, 90.0, 36_000.0].map(duration), ["200 ns", "12 ms", "8.2 s", "1.5 min", "10 h"]);
    }
}
