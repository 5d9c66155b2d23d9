//! Which rows of a fit each of several GPUs gets.

use std::fmt::Write;

use super::{Choice, DeviceInfo, DeviceRequest, OrWhy, Place, Plan, Shape, Share, plan_on};
use crate::base::error::Result;
use crate::base::figures::GroupedDigits;
use crate::base::params::Gpus;
use crate::base::strategy::Strategy;

/// The shares of these GPUs, which may name one several times. Rows go by the number of multiprocessors. Where a share would not
/// fit on its GPU, others that have room take more, so that rows stay on the GPUs if they fit on all together. The inner error
/// says how much memory is needed.
pub fn shared(shape: Shape, request: DeviceRequest, devices: &[&DeviceInfo]) -> Result<OrWhy<Vec<Share>>> {
    let speeds: Vec<u64> = devices.iter().map(|device| u64::from(device.multiprocessors.max(1))).collect();
    let mut rows = divided(shape.rows, &speeds);
    let mut plans = planned(shape, request, devices, &rows)?;
    // A share that fits on its GPU not even in chunks is one more reason to share in another way.
    if plans.as_ref().map_or(true, |plans| plans.iter().flatten().any(|plan| plan.chunking.is_some())) {
        let most = devices.iter().map(|device| most_resident(shape, request, device, times(devices, device)));
        if let Some(filled) = filled(&rows, &most.collect::<Result<Vec<u64>>>()?) {
            rows = filled;
            plans = planned(shape, request, devices, &rows)?;
        }
    }
    Ok(plans.map(|plans| {
        let shares = devices.iter().zip(rows).zip(plans);
        shares.filter_map(|((device, rows), plan)| Some(Share { ordinal: device.ordinal, rows, plan: plan? })).collect()
    }))
}

/// The choice of these shares.
pub fn choice_of(shares: Vec<Share>, mut reason: String) -> Option<Choice> {
    let gpus = Gpus::new(&shares.iter().map(|share| share.ordinal).collect::<Vec<_>>())?;
    let plan = shares[0].plan;
    let is_common = plan.strategy != Strategy::Default && shares.iter().all(|share| share.plan.strategy == plan.strategy);
    for (place, Share { ordinal, rows, plan: Plan { chunking, strategy, .. } }) in shares.iter().enumerate() {
        let start = if place == 0 { "; " } else { ", " };
        // Writing to a text does not fail.
        let _ = write!(reason, "{start}cuda:{ordinal} has {} of the rows", GroupedDigits(*rows));
        if let Some(chunking) = chunking {
            let _ = write!(reason, " ({chunking})");
        }
        if !is_common {
            let _ = write!(reason, " with kernel {strategy}");
        }
    }
    if is_common {
        let _ = write!(reason, "; their kernel is {}", plan.strategy);
    }
    Some(Choice { place: Place::Several(gpus), reason, plan, shares })
}

/// How many of the shares are of this GPU.
fn times(devices: &[&DeviceInfo], device: &DeviceInfo) -> u64 {
    devices.iter().filter(|other| other.ordinal == device.ordinal).count() as u64
}

/// The plans for so many rows on each GPU. None for those without rows.
fn planned(shape: Shape, request: DeviceRequest, devices: &[&DeviceInfo], rows: &[u64]) -> Result<OrWhy<Vec<Option<Plan>>>> {
    let mut plans = Vec::with_capacity(rows.len());
    for (device, &rows) in devices.iter().zip(rows) {
        let share = Shape { rows, ..shape };
        plans.push(match rows {
            0 => None,
            _ => match plan_on(device, share, request, Some(times(devices, device)))? {
                Ok(plan) => Some(plan),
                Err(why) => return Ok(Err(why)),
            },
        });
    }
    Ok(Ok(plans))
}

/// The most rows that stay on a GPU that has so many shares, found by halving.
fn most_resident(shape: Shape, request: DeviceRequest, device: &DeviceInfo, shares: u64) -> Result<u64> {
    let (mut fits, mut too_many) = (0, shape.rows + 1);
    while too_many - fits > 1 + shape.rows / 1_024 {
        let rows = fits + (too_many - fits) / 2;
        match plan_on(device, Shape { rows, ..shape }, request, Some(shares))? {
            Ok(plan) if plan.chunking.is_none() => fits = rows,
            _ => too_many = rows,
        }
    }
    Ok(fits)
}

/// Divides rows in these proportions. The sum is exact.
fn divided(rows: u64, speeds: &[u64]) -> Vec<u64> {
    let all: u128 = speeds.iter().map(|&speed| u128::from(speed)).sum();
    let ends = speeds.iter().scan(0u128, |end, &speed| {
        *end += u128::from(speed);
        Some((u128::from(rows) * *end / all) as u64)
    });
    let mut before = 0;
    ends.map(|end| end - std::mem::replace(&mut before, end)).collect()
}

/// The rows of each GPU if none has more than its most: what is too much for one GPU goes to the other GPUs. None if there is not
/// enough room.
fn filled(rows: &[u64], most: &[u64]) -> Option<Vec<u64>> {
    let mut filled: Vec<u64> = rows.iter().zip(most).map(|(rows, most)| *rows.min(most)).collect();
    let mut left = rows.iter().sum::<u64>() - filled.iter().sum::<u64>();
    for (rows, most) in filled.iter_mut().zip(most) {
        let more = left.min(most - *rows);
        *rows += more;
        left -= more;
    }
    (left == 0).then_some(filled)
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(rows_are_divided_by_speed_and_none_is_lost);
    fn rows_are_divided_by_speed_and_none_is_lost() {
        assert_eq!(divided(10, &[1, 1]), [5, 5]);
        assert_eq!(divided(10, &[132, 66]), [6, 4]);
        assert_eq!(divided(1, &[1, 1, 1]), [0, 0, 1]);
        assert_eq!(divided(u64::MAX, &[132; 16]).iter().sum::<u64>(), u64::MAX);
    }

    unit_test!(what_is_too_much_for_one_goes_to_others);
    fn what_is_too_much_for_one_goes_to_others() {
        assert_eq!(filled(&[50, 50], &[30, 100]), Some(vec![30, 70]));
        assert_eq!(filled(&[50, 50], &[100, 20]), Some(vec![80, 20]));
        assert_eq!(filled(&[50, 50], &[49, 50]), None);
    }
}
