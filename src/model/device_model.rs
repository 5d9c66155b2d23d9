//! A model on a device.

use super::Model;
use crate::backend::answers::{Labels, NearestClusters, Predictions};
#[cfg(feature = "cuda")]
use crate::backend::cuda::array::{GpuArray, GpuPredictions};
use crate::backend::select::{self, Choice, DeviceRequest, Job, Place, Shape, There};
use crate::base::error::{KMeansError, Result};
use crate::base::interrupt::Scope;
use crate::base::parallel::{FloatEnvironment, PoolShare};
use crate::base::params::{Device, DrawnCandidates};
use crate::base::strategy::Strategy;
use crate::input::features::{Column, Features};
use crate::model::predict::{ModelQuery, Predictor};

/// Declares methods of a model on a device, and the same methods of the model itself, which run on the CPU.
macro_rules! on_any_device {
    (impl $model:ty $(where $type:ident: $bound:ident)? { $(
        $(#[$about:meta])*
        pub fn $name:ident(&$self:ident $(, $argument:ident: $of:ty)*) -> $result:ty $body:block
    )* }) => {
        impl $(<$type: $bound>)? $model {
            $(
                $(#[$about])*
                ///
                /// This runs on the CPU.
                pub fn $name(&self $(, $argument: $of)*) -> $result {
                    self.on($crate::base::params::Device::Cpu).$name($($argument),*)
                }
            )*
        }

        impl $(<$type: $bound>)? $crate::model::DeviceModel<'_, $model> {
            $(
                $(#[$about])*
                ///
                /// A device that was demanded and cannot be used is an error too.
                pub fn $name(&$self $(, $argument: $of)*) -> $result $body
            )*
        }
    };
}
pub(crate) use on_any_device;

/// A model whose predictions run on a device. They have the same bits on every device. [`Model::on`] and `KMeansModel::on` make
/// one at no cost.
///
/// [`Device::Cuda`] without a number chooses a GPU at the first call. Later calls stay there, because the model is there.
/// [`Device::Auto`] chooses again for every call. A call may hold one morsel of many, so `Auto` takes a GPU only if one call is
/// much work. If the GPU has no memory left, `Auto` falls back to the CPU.
///
/// ```
/// use polars_kmeans::{Device, Features, KMeans};
///
/// let x = [0.0f32, 0.1, 9.0, 9.1];
/// let features = Features::from_columns([&x[..]])?;
/// let model = KMeans::new(2).seed(1).fit_features(&features, None)?.model;
/// assert_eq!(model.on(Device::Auto).predict(&features)?, model.predict(&features)?);
/// # Ok::<(), polars_kmeans::KMeansError>(())
/// ```
#[derive(Debug)]
pub struct DeviceModel<'m, M> {
    pub(crate) model: &'m M,
    pub(crate) device: Device,
    strategy: Strategy,
}

impl<M> Clone for DeviceModel<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for DeviceModel<'_, M> {}

impl<'m, M> DeviceModel<'m, M> {
    pub(crate) fn new(model: &'m M, device: Device) -> Self {
        Self { model, device, strategy: Strategy::Default }
    }

    /// The kernels that find labels on a GPU: those of tensor cores, or [`Strategy::Tiled`] for float32 products. For tests and
    /// benches: all give the same labels, and the default chooses.
    #[doc(hidden)]
    pub fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }
}

impl<T: Predictor> DeviceModel<'_, Model<T>> {
    /// The device that this many rows would run on, and why.
    ///
    /// # Errors
    /// [`KMeansError::DeviceNotAvailable`] or [`KMeansError::NoMemory`] for a GPU that the caller demanded.
    pub fn choice(&self, job: Job, rows: usize, weighted: bool) -> Result<Choice> {
        select::place(self.device.into(), self.shape(job, rows, weighted, false))
    }

    /// `half`: whether a GPU keeps the rows in 16 bits a value.
    fn shape(&self, job: Job, rows: usize, weighted: bool, half: bool) -> Shape {
        Shape {
            job,
            rows: rows as u64,
            features: self.model.d,
            clusters: self.model.n_clusters(),
            float64: !T::IS_F32,
            half,
            weighted,
            candidates: DrawnCandidates::NONE,
            priced: false,
        }
    }

    /// The device for these rows. Rows on a GPU are answered there.
    fn place(&self, job: Job, features: &Features<'_, T>, weighted: bool) -> Result<Place> {
        let there = features.gpu().map(|ordinal| There { ordinal, in_place: false });
        let shape = self.shape(job, features.n_rows(), weighted, features.half().is_some());
        Ok(select::place(DeviceRequest { there, ..self.device.into() }, shape)?.place)
    }

    /// The labels of rows on a GPU, as an array there: -1 for a row with a null or a value that is not finite.
    ///
    /// # Errors
    /// As [`DeviceModel::predict`]. [`KMeansError::InvalidOption`] for rows on the host, and for rows on another GPU than this
    /// one.
    #[cfg(feature = "cuda")]
    pub fn predict_there(&self, features: &Features<'_, T>) -> Result<GpuArray<i32>> {
        self.run(Job::Labels, features, false, T::labels_on_device)
    }

    /// As [`DeviceModel::predict_there`], with the distances to the two nearest centroids.
    ///
    /// # Errors
    /// As [`DeviceModel::predict_there`].
    #[cfg(feature = "cuda")]
    pub fn predict_distances_there(&self, features: &Features<'_, T>) -> Result<GpuPredictions> {
        self.run(Job::Nearest, features, false, T::nearest_on_device)
    }

    /// The distances of rows on a GPU to every centroid, or their squares, as an array there: `(n, k)`, row-major. NaN for a row
    /// with a null or a value that is not finite.
    ///
    /// # Errors
    /// As [`DeviceModel::predict_there`].
    #[cfg(feature = "cuda")]
    pub fn transform_there(&self, features: &Features<'_, T>, squared: bool) -> Result<GpuArray<f64>> {
        self.run(Job::Distances, features, false, |rows| T::distances_on_device(rows, squared))
    }

    pub(super) fn run<R>(
        &self,
        job: Job,
        features: &Features<'_, T>,
        weighted: bool,
        work: impl Fn(ModelQuery<'_, '_, T>) -> Result<R>,
    ) -> Result<R> {
        let &Self { model, device, strategy } = self;
        if features.n_features() != model.d {
            return Err(KMeansError::WidthMismatch { what: "features", expected: model.d, got: features.n_features() });
        }
        let _environment = FloatEnvironment::default_rounding();
        let _share = PoolShare::enter();
        let _scope = Scope::enter(None);
        let features = &features.transformed_by(model.row_transform()?);
        let place = match device {
            _ if features.gpu().is_some() => self.place(job, features, weighted)?,
            Device::Cpu => Place::Cpu,
            // A query engine asks for thousands of morsels per second. To ask the driver each time would take longer than the
            // work.
            Device::Cuda(wanted) if let Some(ordinal) = model.is_on(wanted).filter(|_| job != Job::Score) => {
                Place::Cuda(ordinal)
            }
            _ => self.place(job, features, weighted)?,
        };
        match work(ModelQuery { model, features, place, strategy }) {
            // Other programs may have taken the memory since the choice was made.
            Err(KMeansError::NoMemory { .. }) if device == Device::Auto && place != Place::Cpu && features.gpu().is_none() => {
                work(ModelQuery { model, features, place: Place::Cpu, strategy })
            }
            done => done,
        }
    }
}

on_any_device! {
    impl Model<T> where T: Predictor {
        /// The exact label of every row. A row with a null or a value that is not finite has none.
        ///
        /// # Errors
        /// [`KMeansError::WidthMismatch`] if the number of features differs from the model's.
        pub fn predict(&self, features: &Features<'_, T>) -> Result<Labels> {
            self.run(Job::Labels, features, false, T::labels)
        }

        /// Label, distance and second distance of every row. The same rows as in [`Model::predict`] have none.
        ///
        /// # Errors
        /// As [`Model::predict`].
        pub fn predict_distances(&self, features: &Features<'_, T>) -> Result<Predictions> {
            self.run(Job::Nearest, features, false, T::nearest)
        }

        /// The distance of every row to every centroid, `(n, k)` row-major: Euclidean, after the rows were scaled and
        /// normalised as in the fit. NaN if a row holds a null or a value that is not finite.
        ///
        /// With `squared`, the squared distances that decide labels, as
        /// [`reference::distance`](crate::exact::reference::distance) defines them: the smallest index of the least one is the
        /// label.
        ///
        /// # Errors
        /// As [`Model::predict`].
        pub fn transform(&self, features: &Features<'_, T>, squared: bool) -> Result<Vec<f64>> {
            self.run(Job::Distances, features, false, |rows| T::distances(rows, squared))
        }

        /// The `m` nearest centroids of every row, by (squared reference distance, number).
        ///
        /// ```
        /// use polars_kmeans::{Features, Init, KMeans};
        ///
        /// let x = [0.0f64, 4.0, 9.0];
        /// let features = Features::from_rows(&x, 1)?;
        /// let model = KMeans::new(3).init(Init::Given(x.to_vec())).fit_features(&features, None)?.model;
        /// let near = model.nearest_clusters(&Features::from_rows(&[5.0], 1)?, 2, false)?;
        /// assert_eq!((near.clusters, near.distances), (vec![1, 2], vec![1.0, 4.0]));
        /// # Ok::<(), polars_kmeans::KMeansError>(())
        /// ```
        ///
        /// # Errors
        /// As [`Model::predict`]. [`KMeansError::InvalidOption`] if `m` is 0 or larger than the number of clusters.
        pub fn nearest_clusters(&self, features: &Features<'_, T>, m: usize, squared: bool) -> Result<NearestClusters> {
            let k = self.model.n_clusters();
            if m == 0 || m > k {
                let (expected, got) = (format!("an integer from 1 to {k}, the number of clusters"), m.to_string());
                return Err(KMeansError::InvalidOption { option: "m", expected, got });
            }
            self.run(Job::NearestClusters, features, false, |rows| T::several(rows, m, squared))
        }

        /// Minus the inertia of these rows under the model, as in scikit-learn. Rows with nulls or values that are not finite are
        /// left out.
        ///
        /// # Errors
        /// As [`Model::predict`]. Also for weights of another length, negative weights, weights of which none is positive, and
        /// values or weights outside the range that a fit accepts.
        pub fn score(&self, features: &Features<'_, T>, weights: Option<&Column<'_, f64>>) -> Result<f64> {
            if let Some(weights) = weights.filter(|weights| weights.len() != features.n_rows()) {
                let (expected, got) = (features.n_rows(), weights.len());
                return Err(KMeansError::LengthMismatch { what: "weight".into(), expected, got });
            }
            // Weights that are on a GPU are brought to rows that are elsewhere.
            let elsewhere = weights.filter(|weights| weights.gpu().is_some() && weights.gpu() != features.gpu());
            let brought = elsewhere.map(Column::on_host).transpose()?;
            let weights = brought.as_ref().or(weights);
            self.run(Job::Score, features, weights.is_some(), |rows| T::inertia(rows, weights)).map(|inertia| -inertia)
        }
    }
}
