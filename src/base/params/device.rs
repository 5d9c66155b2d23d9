//! Where a fit runs.

use std::fmt;
use std::str::FromStr;

use super::declare::OptionQuery;
use crate::base::error::{KMeansError, Result};

/// Where a fit runs. This never changes a bit of the result, and it is not part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Device {
    /// A GPU if one can be used and is predicted to be faster, even if the rows have to stream through it. Otherwise the CPU.
    /// [`Fitted::choice`](crate::Fitted) says which, and why.
    #[default]
    Auto,
    Cpu,
    /// The GPU with this number in the driver's count. Without a number, the GPU with the most free memory. It is an error if
    /// there is none.
    Cuda(Option<u32>),
    /// All GPUs that can be used. Each has a share of the rows.
    AllCuda,
    /// These GPUs. Each has a share of the rows.
    Several(Gpus),
}

/// The numbers of GPUs that share the rows of a fit, in the order of their shares: at most [`Gpus::MOST`]. A number may come
/// several times: then the GPU has as many shares.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gpus {
    ordinals: [u32; Self::MOST],
    count: usize,
}

impl Gpus {
    /// The most shares of a fit.
    pub const MOST: usize = 16;

    /// GPUs of these numbers. None if there are none of them, or too many.
    ///
    /// ```
    /// use polars_kmeans::{Device, Gpus};
    ///
    /// let two = Gpus::new(&[0, 1]).map(Device::Several);
    /// assert_eq!(two, "cuda:0,cuda:1".parse().ok());
    /// assert_eq!(Gpus::new(&[]), None);
    /// ```
    pub fn new(ordinals: &[u32]) -> Option<Self> {
        let mut all = [0; Self::MOST];
        let count = ordinals.len();
        all.get_mut(..count)?.copy_from_slice(ordinals);
        (count > 0).then_some(Self { ordinals: all, count })
    }

    /// Their numbers.
    pub fn ordinals(&self) -> &[u32] {
        &self.ordinals[..self.count]
    }
}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpus").field(&self.ordinals()).finish()
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.ordinals().iter().map(|ordinal| format!("cuda:{ordinal}")).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Device {
    type Err = KMeansError;
    fn from_str(name: &str) -> Result<Self> {
        // Only accept the form that is printed: no "cuda:+1".
        let cuda = || {
            let number = |name: &str| name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
            let device = match &name.split(',').map(number).collect::<Option<Vec<u32>>>()?[..] {
                [one] => Self::Cuda(Some(*one)),
                several => Self::Several(Gpus::new(several)?),
            };
            (device.to_string() == name).then_some(device)
        };
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            "cuda:all" => Ok(Self::AllCuda),
            _ => cuda()
                .ok_or_else(|| OptionQuery { option: "device", expected: None, value: Some(&name.into()) }.refusal::<Self>()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
            Self::AllCuda => f.write_str("cuda:all"),
            Self::Several(gpus) => gpus.fmt(f),
        }
    }
}
