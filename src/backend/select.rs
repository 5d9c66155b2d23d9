//! Chooses where a fit or a prediction runs. The choice is a pure function of the request, the shape of the data and the devices.
//!
//! The results have the same bits everywhere. A wrong guess costs only time.

mod choice;
mod devices;
mod several;
mod shape;

pub use self::choice::{Choice, Place, Plan, Share};
use self::devices::OrWhy;
pub use self::devices::{DeviceInfo, Devices, OLDEST_CAPABILITY, OLDEST_DRIVER, usable};
use self::several::{choice_of, shared};
pub use self::shape::{Job, Shape};
#[cfg(feature = "cuda")]
use super::chunking::MOST_ROWS;
use super::chunking::{Chunking, row_bytes};
use crate::base::error::{KMeansError, Result};
#[cfg(feature = "cuda")]
use crate::base::figures::bytes;
use crate::base::figures::duration;
use crate::base::params::{Device, Gpus};
use crate::base::strategy::Strategy;

// The cost model. It is rough on purpose: it must only tell milliseconds from seconds. In doubt it prefers the CPU.
/// Assumed number of iterations of a fit. The true number is not known beforehand.
const ITERATIONS: f64 = 20.0;
/// Multiply-adds per second of a few CPU cores. Two cores were measured at 3e9 (d = k = 4) to 8e10 (d = 408, k = 500).
const CPU_RATE: f64 = 2e10;
/// Multiply-adds per second of a GPU, including exact distances.
const GPU_RATE: f64 = 1e13;
/// The same where all distances are float64. The GPU rate lies between those of desktop GPUs (2e11) and data-centre GPUs (8e12).
const EXACT_CPU_RATE: f64 = 5e9;
const EXACT_GPU_RATE: f64 = 1e12;
/// Bytes per second that a step of k-means++ reads: a byte of each value, distances and labels.
const PASS_RATE: f64 = 4e12;
/// Bytes per second: from memory that is not pinned over PCIe 4 or 5, and to freshly allocated memory.
const UPLOAD_RATE: f64 = 20e9;
const DOWNLOAD_RATE: f64 = 5e9;
/// Seconds for launches, allocations and small copies.
const GPU_START: f64 = 3e-3;
/// A GPU is chosen only if it is predicted to be faster than the CPU by this factor.
const GPU_MARGIN: f64 = 2.0;
/// The same factor for rows that may be one morsel of many. The CPU works on one morsel per core at a time, a GPU on one morsel
/// after the other.
const MORSEL_MARGIN: f64 = 8.0;

// Several GPUs.
/// Seconds for threads and sessions, and bytes per second of memory for sums that GPUs share.
const SEVERAL_START: f64 = 10e-3;
const SHARED_RATE: f64 = 4e9;
/// Seconds of an exchange of small sums, and bytes per second of one with large sums.
const EXCHANGE: f64 = 20e-6;
const PEER_RATE: f64 = 250e9;
/// Seconds of a step of k-means++ beside its reads. One GPU does all steps, and gets a copy of all rows.
const STEP: f64 = 35e-6;
/// Bytes of sums that a GPU would read from the others, from which on each GPU has clusters of its own
/// (`cuda/exchange/own_clusters.rs`), unless the metric is cosine.
const LARGE_SUMS: u64 = 16 << 20;
/// Several GPUs are chosen only if they are predicted to be faster than one by this factor.
const SEVERAL_MARGIN: f64 = 1.2;

/// Where the caller wants a job to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRequest {
    pub device: Device,
    /// How a fit labels rows.
    pub strategy: Strategy,
    /// The bytes of a GPU's memory that the job may take. The free memory limits it too.
    pub limit: Option<u64>,
    /// Where the rows are, if they are on a GPU already. The job runs there.
    pub there: Option<There>,
}

/// The GPU that the rows are on before the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct There {
    pub ordinal: u32,
    /// Whether the job reads the rows where they are. Otherwise the GPU makes a copy.
    pub in_place: bool,
}

impl From<Device> for DeviceRequest {
    fn from(device: Device) -> Self {
        Self { device, strategy: Strategy::Default, limit: None, there: None }
    }
}

impl DeviceRequest {
    /// The same request for the GPU that the rows are on, if they are on one.
    ///
    /// # Errors
    /// [`KMeansError::InvalidOption`] if another device is demanded.
    fn where_rows_are(self) -> Result<Self> {
        let Some(There { ordinal, .. }) = self.there else { return Ok(self) };
        match self.device {
            Device::Auto | Device::Cuda(None) => {}
            Device::Cuda(Some(wanted)) if wanted == ordinal => {}
            device => {
                let expected = format!("\"cuda:{ordinal}\" or \"auto\", because the rows are on that GPU");
                return Err(KMeansError::InvalidOption { option: "device", expected, got: format!("\"{device}\"") });
            }
        }
        Ok(Self { device: Device::Cuda(Some(ordinal)), ..self })
    }
}

/// Chooses among the devices of this machine. It asks for the devices only if the answer depends on them: there may be thousands
/// of small fits and morsels per second, and these must not pay for the question.
///
/// # Errors
/// As [`choose`].
pub fn place(request: DeviceRequest, shape: Shape) -> Result<Choice> {
    let request = request.where_rows_are()?;
    let matter = match request.device {
        Device::Cpu => false,
        Device::Auto => pays(shape, None),
        Device::Cuda(_) | Device::AllCuda | Device::Several(_) => true,
    };
    let devices = if matter { super::devices() } else { Ok(Vec::new()) };
    let choice = choose(request, shape, &devices)?;
    #[cfg(feature = "cuda")]
    {
        let mut choice = choice;
        if let (Device::Auto, Place::Several(gpus)) = (request.device, choice.place)
            && !super::cuda::reach_each_other(gpus.ordinals())
        {
            // Sums that go through the host take much longer than predicted.
            let one = roomiest(&devices).ok().cloned();
            choice = choose(request, shape, &Ok(one.into_iter().collect()))?;
        }
        // Tensor cores whose sums are outside of every bound are not chosen again.
        if super::cuda::is_untrusted(&choice)? { place(request, shape) } else { Ok(choice) }
    }
    #[cfg(not(feature = "cuda"))]
    Ok(choice)
}

/// Chooses among these devices.
///
/// # Errors
/// [`KMeansError::DeviceNotAvailable`] if the request demands a GPU that does not exist or cannot be used.
/// [`KMeansError::NoMemory`] if the data do not fit on the demanded GPU; for a fit, if they do not fit even in chunks.
/// [`KMeansError::InvalidOption`] if the strategy cannot do the shape.
/// [`Device::Auto`] and [`Device::Cpu`] never give an error for the default strategy.
pub fn choose(request: DeviceRequest, shape: Shape, devices: &Devices) -> Result<Choice> {
    let requested = request.device;
    let asked = || format!("device=\"{requested}\" was asked for");
    let cpu = |reason: String| Ok(Choice::cpu(reason));
    let not_available = |reason| KMeansError::DeviceNotAvailable { requested: requested.to_string(), reason };
    match requested {
        Device::Cpu => cpu(asked()),
        Device::Auto => {
            let predicted = |chunking: Option<Chunking>, gpu: &str| {
                let [on_cpu, on_gpu] = seconds(shape, chunking).map(duration);
                format!("{shape} are predicted to take {on_cpu} on the CPU and {on_gpu} on {gpu}")
            };
            if !pays(shape, None) {
                let [on_cpu, on_gpu] = seconds(shape, None).map(duration);
                let reason = format!("{shape} are predicted to take {on_cpu} on the CPU");
                return cpu(format!("{reason}: a GPU would take {on_gpu}, so none was looked for"));
            }
            let device = match roomiest(devices) {
                Err(why) => return cpu(format!("no GPU can be used: {why}")),
                Ok(device) => device,
            };
            match plan_on(device, shape, request, None)? {
                Err(why) => cpu(format!("the data do not fit on a GPU: they need {why}")),
                Ok(Plan { chunking: Some(chunking), .. }) if !pays(shape, Some(chunking)) => {
                    cpu(predicted(Some(chunking), "a GPU, which would not pay: ") + &chunking.to_string())
                }
                Ok(plan) => match shared_if_it_pays(shape, request, devices, &plan)? {
                    Some(choice) => Ok(choice),
                    None => Ok(choice_on(device, plan, predicted(plan.chunking, &device.to_string()))),
                },
            }
        }
        Device::AllCuda => {
            let usable = usable_of(devices).map_err(not_available)?;
            demanded_on_all(shape, request, &usable, asked())
        }
        Device::Several(gpus) => {
            let named = gpus.ordinals().iter().map(|&ordinal| numbered(devices, ordinal)).collect::<OrWhy<Vec<_>>>();
            demanded_on_all(shape, request, &named.map_err(not_available)?, asked())
        }
        Device::Cuda(None) => {
            let device = roomiest(devices).map_err(not_available)?;
            let reason = format!("{}, and {device} has the most free memory of those that can be used", asked());
            demanded(shape, request, device, reason)
        }
        Device::Cuda(Some(ordinal)) => {
            let device = numbered(devices, ordinal).map_err(not_available)?;
            let reason = request.there.map_or_else(asked, |_| format!("the rows are on {device}"));
            demanded(shape, request, device, reason)
        }
    }
}

/// The choice of a device that was demanded.
fn demanded(shape: Shape, request: DeviceRequest, device: &DeviceInfo, reason: String) -> Result<Choice> {
    Ok(choice_on(device, plan_on(device, shape, request, None)?.map_err(no_room)?, reason))
}

/// The error for data that do not fit on the devices that were demanded.
fn no_room(what: String) -> KMeansError {
    KMeansError::NoMemory { what: what.into(), bytes: None }
}

/// The choice of several devices that were demanded.
fn demanded_on_all(shape: Shape, request: DeviceRequest, devices: &[&DeviceInfo], reason: String) -> Result<Choice> {
    // A score needs the extents of all rows before it adds up, and has them on one GPU.
    if devices.len() == 1 || shape.job == Job::Score {
        let roomiest = devices.iter().max_by_key(|device| (device.memory_free, std::cmp::Reverse(device.ordinal)));
        return demanded(shape, request, roomiest.unwrap_or(&devices[0]), reason);
    }
    if shape.job != Job::Fit {
        let mut choices = devices.iter().map(|device| demanded(shape, request, device, reason.clone()));
        let first = choices.next().unwrap_or_else(|| unreachable!("there are several"))?;
        choices.try_for_each(|choice| choice.map(drop))?;
        let ordinals: Vec<u32> = devices.iter().map(|device| device.ordinal).collect();
        let place = Gpus::new(&ordinals).map_or(first.place, Place::Several);
        return Ok(Choice { place, ..first });
    }
    let devices = &devices[..devices.len().min(Gpus::MOST)];
    let shares = shared(shape, request, devices)?.map_err(no_room)?;
    match choice_of(shares, reason.clone()) {
        Some(choice) if choice.shares.len() > 1 => Ok(choice),
        _ => demanded(shape, request, devices[0], reason),
    }
}

/// The choice of all GPUs that can be used, if they are predicted to be enough faster than the plan for one of them.
fn shared_if_it_pays(shape: Shape, request: DeviceRequest, devices: &Devices, one: &Plan) -> Result<Option<Choice>> {
    let Ok(usable) = usable_of(devices) else { return Ok(None) };
    if shape.priced
        || shape.job != Job::Fit
        || usable.len() < 2
        || usable.len() > Gpus::MOST
        || request.strategy != Strategy::Default
    {
        return Ok(None);
    }
    let Ok(shares) = shared(shape, request, &usable)? else { return Ok(None) };
    // An iteration takes as long as that of the slowest GPU.
    let together = shares.iter().try_fold(0.0f64, |most, share| Some(most.max(share.plan.microseconds?)));
    let several = usable.len() as f64;
    let upload = |chunking: Option<Chunking>, rows: f64| {
        let passes = 1.0 + chunking.map_or(0.0, |chunking| ITERATIONS * chunking.travelling());
        rows * row_bytes(shape) as f64 / UPLOAD_RATE * passes
    };
    let (Some(alone), Some(together)) = (one.microseconds, together) else { return Ok(None) };
    let cells = shape.clusters as f64 * shape.features as f64;
    // Two words for a cell. With weights there is a second limb, and without them some data need one.
    let sums = cells * if shape.weighted { 32.0 } else { 16.0 };
    let read = sums * (several - 1.0);
    let means = cells * if shape.float64 { 8.0 } else { 4.0 };
    let exchange = if read < LARGE_SUMS as f64 {
        EXCHANGE + read / PEER_RATE
    } else {
        // The sums of a GPU's own clusters, and the means of the clusters of others.
        2.0 * EXCHANGE + (sums + means) * (several - 1.0) / several / PEER_RATE
    };
    let steps = shape.candidates.steps as f64 * (STEP + seconds_on_gpu(shape, one)[1]);
    let gathered = if steps > 0.0 { shape.rows as f64 * row_bytes(shape) as f64 / PEER_RATE } else { 0.0 };
    let widest = shares.iter().max_by_key(|share| share.rows);
    let alone = steps + ITERATIONS * alone * 1e-6 + upload(one.chunking, shape.rows as f64);
    let together = steps
        + gathered
        + SEVERAL_START
        + sums / SHARED_RATE
        + ITERATIONS * (together * 1e-6 + exchange)
        + widest.map_or(0.0, |share| upload(share.plan.chunking, share.rows as f64));
    if together * SEVERAL_MARGIN > alone {
        return Ok(None);
    }
    let (alone, together, count) = (duration(alone), duration(together), usable.len());
    Ok(choice_of(shares, format!("{shape} are predicted to take {alone} on one GPU and {together} on {count}")))
}

/// The devices that can be used, at least one.
fn usable_of(devices: &Devices) -> OrWhy<Vec<&DeviceInfo>> {
    roomiest(devices)?;
    Ok(known(devices)?.iter().filter(|device| device.usable).collect())
}

/// The device of this number, if it can be used.
fn numbered(devices: &Devices, ordinal: u32) -> OrWhy<&DeviceInfo> {
    let devices = known(devices)?;
    let device = devices.iter().find(|device| device.ordinal == ordinal).ok_or_else(|| {
        let there: Vec<String> = devices.iter().map(ToString::to_string).collect();
        format!("there is no cuda:{ordinal}, only {}", there.join(", "))
    })?;
    if device.usable { Ok(device) } else { Err(format!("{device}: {}", device.reason)) }
}

/// The devices (at least one), or the reason why there is none.
fn known(devices: &Devices) -> OrWhy<&[DeviceInfo]> {
    match devices {
        Ok(devices) if devices.is_empty() => Err("the driver lists no GPU".into()),
        Ok(devices) => Ok(devices),
        Err(why) => Err(why.clone()),
    }
}

/// The usable device with the most free memory. Ties go to the smallest number. The error says why there is none.
fn roomiest(devices: &Devices) -> OrWhy<&DeviceInfo> {
    let devices = known(devices)?;
    let usable = devices.iter().filter(|device| device.usable);
    usable.min_by_key(|device| (std::cmp::Reverse(device.memory_free), device.ordinal)).ok_or_else(|| {
        let reasons: Vec<String> = devices.iter().map(|device| format!("{device}: {}", device.reason)).collect();
        reasons.join("; ")
    })
}

/// The plan for a job on a GPU. If the rows do not all fit, those of a fit pass through the GPU in chunks. `shares`: how many
/// shares the GPU has in a fit on several, and the plan is for one of them. The inner error says how much memory is needed, on
/// which device, and how much there is.
///
/// # Errors
/// [`KMeansError::InvalidOption`] if the strategy cannot do the shape.
#[cfg(feature = "cuda")]
fn plan_on(device: &DeviceInfo, shape: Shape, request: DeviceRequest, shares: Option<u64>) -> Result<OrWhy<Plan>> {
    use super::cuda::memory;
    // A tenth is left for the context, fragmentation and other programs.
    let count = shares.unwrap_or(1).max(1);
    let free = (device.memory_free - device.memory_free / 10) / count;
    let all = request.limit.map_or(free, |limit| (limit / count).min(free));
    let beside = if shares.is_some() { memory::of_exchange(shape) } else { 0 };
    let room = all.saturating_sub(beside);
    let (gpu, here) = (device.into(), Plan::within(all));
    let needed = if shape.job == Job::Fit {
        let in_place = request.there.is_some_and(|there| there.in_place);
        let fit = memory::fit(shape, request.strategy, gpu, in_place, room)?;
        if fit.bytes <= room && shape.rows <= MOST_ROWS {
            let memory::Planned { strategy, more_copies, microseconds, bytes, .. } = fit;
            return Ok(Ok(Plan { strategy, more_copies, microseconds, bytes: bytes + beside, ..here }));
        }
        match memory::in_chunks(shape, request.strategy, gpu, room)? {
            // Only rows on the host pass through a GPU in chunks, and not if passes take prices.
            Ok(_) if request.there.is_some() || shape.priced => bytes(fit.bytes).to_string(),
            Ok((chunking, memory::Planned { strategy, microseconds, bytes, .. })) => {
                return Ok(Ok(Plan { chunking: Some(chunking), strategy, microseconds, bytes: bytes + beside, ..here }));
            }
            Err(needed) => format!("{} in chunks", bytes(needed)),
        }
    } else {
        match memory::of_model(shape, gpu) {
            needed if needed <= room => return Ok(Ok(Plan { bytes: needed, ..here })),
            needed => bytes(needed).to_string(),
        }
    };
    Ok(Err(match request.limit.filter(|&limit| limit < free) {
        Some(limit) => format!("{needed} on {device}, where device_memory_limit allows {}", bytes(limit)),
        None => {
            let (free, total) = (bytes(device.memory_free), bytes(device.memory_total));
            format!("{needed} on {device}, where {free} of {total} are free and a tenth of that stays so")
        }
    }))
}

#[cfg(not(feature = "cuda"))]
fn plan_on(_: &DeviceInfo, _: Shape, _: DeviceRequest, _: Option<u64>) -> Result<OrWhy<Plan>> {
    unreachable!("without the feature there is no device")
}

/// The choice of a device with a plan.
fn choice_on(device: &DeviceInfo, plan: Plan, mut reason: String) -> Choice {
    if let Some(chunking) = plan.chunking {
        reason += &format!("; {chunking}");
    }
    if plan.strategy != Strategy::Default {
        let why = plan.microseconds.map_or("as asked".into(), |time| {
            format!("which is predicted to be the fastest, with {} an iteration", duration(time * 1e-6))
        });
        reason += &format!("; its kernel is {}, {why}", plan.strategy);
    }
    Choice { place: Place::Cuda(device.ordinal), reason, plan, shares: Vec::new() }
}

/// Predicted seconds: on the CPU, and on a GPU.
fn seconds(shape: Shape, chunking: Option<Chunking>) -> [f64; 2] {
    let values = shape.rows as f64 * shape.features as f64;
    let (passes, cpu_rate, gpu_rate) = match shape.job {
        Job::Fit => (ITERATIONS, CPU_RATE, GPU_RATE),
        Job::Labels | Job::Score => (1.0, CPU_RATE, GPU_RATE),
        Job::Nearest | Job::Distances | Job::NearestClusters => (1.0, EXACT_CPU_RATE, EXACT_GPU_RATE),
    };
    let work = values * shape.clusters as f64 * passes;
    let upload = shape.rows as f64 * row_bytes(Shape { weighted: false, ..shape }) as f64 / UPLOAD_RATE;
    // Chunks travel while the GPU works on others.
    let again = chunking.map_or(0.0, |chunking| passes * upload * chunking.travelling());
    let download = shape.rows as f64 * shape.answer() as f64 / DOWNLOAD_RATE;
    [work / cpu_rate, GPU_START + upload + again.max(work / gpu_rate) + download]
}

/// Seconds that an iteration is predicted to take on a GPU with this plan, and a pass over the rows of a seeding.
pub fn seconds_on_gpu(shape: Shape, plan: &Plan) -> [f64; 2] {
    let rows = shape.rows as f64;
    let work = plan.microseconds.map_or(rows * shape.features as f64 * shape.clusters as f64 / GPU_RATE, |time| time * 1e-6);
    // Chunks travel while the GPU works on others.
    let upload = rows * row_bytes(shape) as f64 / UPLOAD_RATE;
    let again = plan.chunking.map_or(0.0, |chunking| upload * chunking.travelling());
    [work.max(again), (rows * (24.0 + shape.features as f64) / PASS_RATE).max(again)]
}

/// Whether a GPU is predicted to be enough faster than the CPU.
fn pays(shape: Shape, chunking: Option<Chunking>) -> bool {
    let [cpu, gpu] = seconds(shape, chunking);
    gpu * if shape.in_batches() { MORSEL_MARGIN } else { GPU_MARGIN } < cpu
}

#[cfg(all(feature = "tests", feature = "cuda"))]
mod tests;
#[cfg(all(feature = "tests", feature = "cuda"))]
pub(crate) use self::tests::device as invented_device;
