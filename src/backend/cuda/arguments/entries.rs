//! Which kernel takes which argument. A kernel is named nowhere else.

use super::*;
use crate::backend::cuda::device::Entry;
use crate::float::Float;

/// Declares entries: a function for each kernel, or for each family of variants of a kernel. `typed` kernels are compiled for each
/// feature type, and only the caller's type can be loaded. `"module" "stem"`: the file and the start of the name.
macro_rules! entries {
    (
        typed { $( $(#[$attribute:meta])* $function:ident($argument:ty) = $module:literal $stem:literal; )* }
        untyped { $( $untyped:ident($untyped_argument:ty) = $untyped_module:literal $untyped_stem:literal; )* }
    ) => {
        $(
            $(#[$attribute])*
            pub const fn $function<T: Float>() -> Entry<$argument> {
                Entry::typed::<T>($module, $stem)
            }
        )*
        $(
            pub const fn $untyped() -> Entry<$untyped_argument> {
                Entry::untyped($untyped_module, $untyped_stem)
            }
        )*

        /// The module, the stem and the argument of every entry. A test compares them with the sources of the kernels.
        #[cfg(test)]
        const ENTRIES: &[(&str, &str, &str)] = &[
            $( $(#[$attribute])* ($module, $stem, stringify!($argument)), )*
            $( ($untyped_module, $untyped_stem, stringify!($untyped_argument)), )*
        ];
    };
}

entries! {
    typed {
        assign_registers(AssignArgument<T>) = "assign_registers" "assign_registers";
        assign_columns(AssignArgument<T>) = "assign_columns" "assign_columns";
        assign_tiled(AssignArgument<T>) = "assign_tiled" "assign_tiled";
        by_row(ByRowArgument) = "by_row" "by_row";
        settle(SettleArgument<T>) = "settle" "settle";
        settle_pairs(SettleArgument<T>) = "settle" "settle_pairs";
        settle_few(SettleFewArgument) = "settle_few" "settle_few";
        settle_listed(SettleListedArgument) = "settle_few" "settle_listed";
        tensor_clear(TensorRowsArgument<T>) = "tensor_groups" "tensor_clear";
        tensor_group(TensorRowsArgument<T>) = "tensor_groups" "tensor_group";
        tensor_places(TensorRowsArgument<T>) = "tensor_groups" "tensor_places";
        tensor_rows(TensorRowsArgument<T>) = "tensor_rows" "tensor_rows";
        tensor_centres(TensorCentroidsArgument<T>) = "tensor_centroids" "tensor_centres";
        tensor_means(TensorCentroidsArgument<T>) = "tensor_centroids" "tensor_means";
        tensor_merge(TensorCentroidsArgument<T>) = "tensor_centroids" "tensor_merge";
        tensor_near(TensorCentroidsArgument<T>) = "tensor_centroids" "tensor_near";
        tensor_list(TensorCentroidsArgument<T>) = "tensor_centroids" "tensor_list";
        tensor_centroids(TensorCentroidsArgument<T>) = "tensor_centroids" "tensor_centroids";
        cells_clear(CellRowsArgument) = "cells_rows" "cells_clear";
        cells_sample(CellRowsArgument) = "cells_rows" "cells_sample";
        cells_find(CellRowsArgument) = "cells_rows" "cells_find";
        cells_places(CellRowsArgument) = "cells_rows" "cells_places";
        cells_tiles(CellRowsArgument) = "cells_rows" "cells_tiles";
        cells_boxes(CellRowsArgument) = "cells_rows" "cells_boxes";
        cells_split(CellSplitArgument) = "cells_split" "cells_split";
        cells_lists(CellListsArgument) = "cells_lists" "cells_lists";
        assign_cells(AssignCellsArgument<T>) = "assign_cells" "assign_cells";
        bounds_drifts(CarriedRowsArgument<T>) = "bounds_carry" "bounds_drifts";
        bounds_tighten(CarriedRowsArgument<T>) = "bounds_carry" "bounds_tighten";
        bounds_move(MovedRowsArgument) = "bounds_order" "bounds_move";
        bounds_rows(CarriedRowsArgument<T>) = "bounds_rows" "bounds_rows";
        deltas(DeltasArgument) = "deltas" "deltas";
        update(UpdateArgument<T>) = "update" "update";
        update_directions(UpdateArgument<T>) = "update" "update_directions";
        directions(DirectionsArgument) = "directions" "directions";
        update_fold(UpdateArgument<T>) = "update" "update_fold";
        update_start(UpdateArgument<T>) = "update" "start";
        inertia(InertiaArgument) = "distances" "inertia";
        farthest(FarArgument) = "distances" "farthest";
        far_rows(FarArgument) = "distances" "far_rows";
        relocate(RelocateArgument) = "distances" "relocate";
        survey(SurveyArgument) = "prepare" "survey";
        weighted_extents(SurveyArgument) = "prepare" "weighted_extents";
        count_small(CountSmallArgument) = "prepare" "count_small";
        variance(VarianceArgument) = "prepare" "variance";
        seed_search(SearchArgument) = "seed" "seed_search";
        seed_row(RowArgument) = "seed" "seed_row";
        seed_sample(BernoulliArgument) = "seed" "seed_sample";
        seed_take(TakeArgument) = "seed" "seed_take";
        seed_gains(GainsArgument) = "seed" "seed_gains";
        seed_gather(GatherArgument) = "seed" "seed_gather";
        seed_lower(LowerArgument) = "seed" "seed_lower";
        plus_draw(PlusDrawArgument) = "plus_plus" "plus_draw";
        plus_take(PlusTakeArgument) = "plus_plus" "plus_take";
        plus_centres(PlusCentresArgument) = "plus_filter" "plus_centres";
        plus_copies(PlusCopiesArgument) = "plus_filter" "plus_copies";
        plus_filter(PlusFilterArgument) = "plus_filter" "plus_filter";
        plus_settle(PlusSettleArgument) = "plus_filter" "plus_settle";
        potentials(PotentialsArgument) = "stream" "potentials";
        stream_sample(StreamSampleArgument) = "stream" "stream_sample";
        scale_columns(ScaleColumnsArgument) = "arrival" "scale_columns";
        normalise(NormaliseArgument) = "arrival" "normalise";
        rows_to_columns(TransposeArgument) = "layout" "rows_to_columns";
        foreign_to_columns(ForeignArgument) = "foreign" "foreign_to_columns";
        finite_rows(FiniteRowsArgument) = "foreign" "finite_rows";
        nearest(NearestArgument) = "predict" "nearest";
        distances(DistancesArgument) = "predict" "distances";
        blank(BlankArgument) = "predict" "blank";
        #[cfg(feature = "bench")]
        reference(ReferenceArgument) = "reference" "reference";
        #[cfg(feature = "papers")]
        assign_portions(SystemAssignArgument<T>) = "assign_portions" "assign_portions";
        #[cfg(feature = "papers")]
        assign_table(SystemAssignArgument<T>) = "assign_table" "assign_table";
        #[cfg(feature = "papers")]
        assign_fused(SystemAssignArgument<T>) = "assign_fused" "assign_fused";
        #[cfg(feature = "papers")]
        clear_sums(SystemSumsArgument) = "mass" "clear_sums";
        #[cfg(feature = "papers")]
        mass_atomic(SystemSumsArgument) = "mass" "mass_atomic";
        #[cfg(feature = "papers")]
        mass_global(SystemSumsArgument) = "mass" "mass_global";
        #[cfg(feature = "papers")]
        mass_local(SystemSumsArgument) = "mass" "mass_local";
        #[cfg(feature = "papers")]
        mass_private(SystemSumsArgument) = "mass" "mass_private";
        #[cfg(feature = "papers")]
        sum_merge(SystemSumsArgument) = "sum_merge" "sum_merge";
        #[cfg(feature = "papers")]
        sum_features(SystemSumsArgument) = "sum_features" "sum_features";
        #[cfg(feature = "papers")]
        sum_groups_first(SystemSumsArgument) = "sum_groups" "sum_groups_first";
        #[cfg(feature = "papers")]
        sum_groups_next(SystemSumsArgument) = "sum_groups" "sum_groups_next";
        #[cfg(feature = "papers")]
        sum_groups_last(SystemSumsArgument) = "sum_groups" "sum_groups_last";
        #[cfg(feature = "papers")]
        sum_shared(SystemSumsArgument) = "sum_atomics" "sum_shared";
        #[cfg(feature = "papers")]
        sum_adjust(SystemSumsArgument) = "sum_atomics" "sum_adjust";
    }
    untyped {
        cells_tree(CellTreeArgument) = "cells_tree" "cells_tree";
        cells_take_labels(CellLabelsArgument) = "cells_labels" "cells_take_labels";
        cells_give_labels(CellLabelsArgument) = "cells_labels" "cells_give_labels";
        bounds_copies(CarriedArgument) = "bounds_carry" "bounds_copies";
        bounds_carry(CarriedArgument) = "bounds_carry" "bounds_carry";
        bounds_count(CarriedArgument) = "bounds_order" "bounds_count";
        bounds_starts(CarriedArgument) = "bounds_order" "bounds_starts";
        bounds_places(CarriedArgument) = "bounds_order" "bounds_places";
        assign_bounded(BoundedArgument) = "assign_bounded" "assign_bounded";
        assign_tensor(TensorArgument) = "assign_tensor" "assign_tensor";
        end_chunk(EndChunkArgument) = "update" "end_chunk";
        arrive(ArriveArgument) = "exchange" "arrive";
        meet(MeetArgument) = "exchange" "meet";
        total_sums(TotalArgument) = "exchange" "total_sums";
        assign_tensor_mma(TensorArgument) = "assign_tensor_mma" "assign_tensor_mma";
        probe_tensor_wgmma(ProbeTensorArgument) = "probe_tensor" "probe_tensor_wgmma";
        probe_tensor_mma(ProbeTensorArgument) = "probe_tensor" "probe_tensor_mma";
        weight_survey(WeightSurveyArgument) = "prepare" "weight_survey";
        round_weights(RoundWeightsArgument) = "prepare" "round_weights";
        seed_totals(TotalsArgument) = "seed" "seed_totals";
        seed_weigh(WeighArgument) = "seed" "seed_weigh";
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The text of all files in a folder and its folders.
    fn sources(folder: &Path, out: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|extension| extension == "cu") {
                out.push((path.file_stem().unwrap().to_str().unwrap().into(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }

    /// Every declared kernel takes the struct that its entry names. Macros declare most kernels: `##` joins parts of a name.
    #[test]
    fn kernels_take_the_structs_of_their_entries() {
        let mut files = Vec::new();
        sources(Path::new("kernels"), &mut files);
        for (module, stem, argument) in ENTRIES {
            let (_, text) = files.iter().find(|(name, _)| name == module).unwrap_or_else(|| panic!("{module}"));
            let declared: Vec<(&str, &str)> = text
                .split("(const __grid_constant__ ")
                .collect::<Vec<_>>()
                .windows(2)
                .map(|w| (w[0].rsplit(' ').next().unwrap(), w[1].split([' ', '<']).next().unwrap()))
                .collect();
            let name = argument.split_once("Argument").unwrap().0;
            // Some macros get the whole name of a kernel as a parameter.
            let of_stem = |kernel: &str| kernel.replace("##", "_").replace("__", "_").starts_with(stem) || kernel == "NAME";
            let found: Vec<_> = declared.iter().filter(|(kernel, _)| of_stem(kernel)).collect();
            assert!(!found.is_empty() && found.iter().all(|(_, taken)| *taken == name), "{module} {stem} {name}: {found:?}");
        }
    }
}
