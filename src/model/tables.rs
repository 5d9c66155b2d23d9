//! The centroids in the form that predictions compare rows with. Made once per device, and kept as long as the model.

use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::{Derived, Model};
use crate::backend::centre::middle;
use crate::backend::cpu::CentroidTable;
#[cfg(feature = "cuda")]
use crate::backend::cuda;
use crate::base::error::Result;
use crate::base::float::Float;
use crate::simd::InstructionSet;

/// The centroids in the forms that predictions read.
#[derive(Debug)]
pub struct Tables<T> {
    host: Derived<Arc<CentroidTable<T>>>,
    /// Keyed by the number of the GPU.
    #[cfg(feature = "cuda")]
    devices: Mutex<HashMap<u32, Arc<cuda::DeviceTable<T>>>>,
}

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self {
            host: Derived::default(),
            #[cfg(feature = "cuda")]
            devices: Mutex::default(),
        }
    }
}

impl<T: Float> Model<T> {
    pub(crate) fn host_table(&self) -> Result<&Arc<CentroidTable<T>>> {
        self.table.get(|| Ok(Tables::default()))?.host.get(|| {
            let extent = self.centroids.iter().fold(0.0f64, |m, c| m.max(c.to_f64().abs()));
            let centre = middle(&self.centroids, self.d)?;
            Ok(Arc::new(CentroidTable::new(&self.centroids, self.d, &centre, extent, InstructionSet::detect(), 1)?))
        })
    }

    /// A GPU that has the model already: this one, or any.
    pub(crate) fn is_on(&self, wanted: Option<u32>) -> Option<u32> {
        #[cfg(feature = "cuda")]
        if let Ok(tables) = self.table.get(|| Ok(Tables::default())) {
            let devices = tables.devices.lock().unwrap_or_else(PoisonError::into_inner);
            return devices.keys().copied().filter(|ordinal| wanted.is_none_or(|wanted| wanted == *ordinal)).min();
        }
        #[cfg(not(feature = "cuda"))]
        let _ = wanted;
        None
    }

    /// The first of several threads makes the table. The other threads wait for it.
    #[cfg(feature = "cuda")]
    pub(crate) fn device_table(&self, ordinal: u32) -> Result<Arc<cuda::DeviceTable<T>>> {
        let tables = self.table.get(|| Ok(Tables::default()))?;
        let mut devices = tables.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = devices.get(&ordinal) {
            return Ok(table.clone());
        }
        let table = Arc::new(cuda::DeviceTable::new(ordinal, &self.centroids, self.d)?);
        devices.insert(ordinal, table.clone());
        Ok(table)
    }
}
