//! Which kernel takes which argument. A kernel is named nowhere else.

use super::*;
use crate::backend::cuda::device::Entry;

/// Declares entries: a function for each kernel, or for each family of variants of a kernel. `typed` kernels are compiled for each
/// feature type. `"module" "stem"`: the file and the start of the name.
macro_rules! entries {
    ($( $(#[$attribute:meta])* $function:ident $(<$t:ident>)? ($argument:ty) = $kind:ident $module:literal $stem:literal; )*) => {
        $(
            $(#[$attribute])*
            pub const fn $function $(<$t: Copy>)? () -> Entry<$argument> {
                Entry::$kind($module, $stem)
            }
        )*

        /// The module, the stem and the argument of every entry. A test compares them with the sources of the kernels.
        #[cfg(test)]
        const ENTRIES: &[(&str, &str, &str)] = &[
            $( $(#[$attribute])* ($module, $stem, stringify!($argument)), )*
        ];
    };
}

entries! {
    assign_registers<T>(AssignArgument<T>) = new "assign_registers" "assign_registers";
    assign_tiled<T>(AssignArgument<T>) = new "assign_tiled" "assign_tiled";
    settle(SettleArgument) = new "settle" "settle";
    settle_pairs(SettleArgument) = new "settle" "settle_pairs";
    deltas(DeltasArgument) = new "deltas" "deltas";
    update<T>(UpdateArgument<T>) = new "update" "update";
    update_fold<T>(UpdateArgument<T>) = new "update" "update_fold";
    update_start<T>(UpdateArgument<T>) = new "update" "start";
    inertia(InertiaArgument) = new "distances" "inertia";
    masked_distances(MaskedArgument) = new "distances" "masked_distances";
    farthest(FarthestArgument) = untyped "distances" "farthest";
    relocate(RelocateArgument) = new "distances" "relocate";
    survey(SurveyArgument) = new "prepare" "survey";
    weighted_extents(SurveyArgument) = new "prepare" "weighted_extents";
    weight_survey(WeightSurveyArgument) = untyped "prepare" "weight_survey";
    round_weights(RoundWeightsArgument) = untyped "prepare" "round_weights";
    count_small(CountSmallArgument) = new "prepare" "count_small";
    variance(VarianceArgument) = new "prepare" "variance";
    seed_totals(TotalsArgument) = untyped "seed" "seed_totals";
    seed_search(SearchArgument) = new "seed" "seed_search";
    seed_row(RowArgument) = new "seed" "seed_row";
    seed_take(TakeArgument) = new "seed" "seed_take";
    seed_take_many(TakeArgument) = new "seed" "seed_take_many";
    seed_gains(GainsArgument) = new "seed" "seed_gains";
    seed_sample(BernoulliArgument) = untyped "seed" "seed_sample";
    seed_gather(GatherArgument) = new "seed" "seed_gather";
    seed_masses(MassesArgument) = new "seed" "seed_masses";
    potentials(PotentialsArgument) = new "stream" "potentials";
    stream_sample(StreamSampleArgument) = new "stream" "stream_sample";
    rows_to_columns(TransposeArgument) = new "layout" "rows_to_columns";
    nearest(NearestArgument) = new "predict" "nearest";
    distances(DistancesArgument) = new "predict" "distances";
    blank(BlankArgument) = new "predict" "blank";
    #[cfg(feature = "papers")]
    assign_portions<T>(SystemAssignArgument<T>) = new "assign_portions" "assign_portions";
    #[cfg(feature = "papers")]
    assign_table<T>(SystemAssignArgument<T>) = new "assign_table" "assign_table";
    #[cfg(feature = "papers")]
    assign_fused<T>(SystemAssignArgument<T>) = new "assign_fused" "assign_fused";
    #[cfg(feature = "papers")]
    clear_sums(SystemSumsArgument) = new "mass" "clear_sums";
    #[cfg(feature = "papers")]
    mass_atomic(SystemSumsArgument) = new "mass" "mass_atomic";
    #[cfg(feature = "papers")]
    mass_global(SystemSumsArgument) = new "mass" "mass_global";
    #[cfg(feature = "papers")]
    mass_local(SystemSumsArgument) = new "mass" "mass_local";
    #[cfg(feature = "papers")]
    mass_private(SystemSumsArgument) = new "mass" "mass_private";
    #[cfg(feature = "papers")]
    sum_merge(SystemSumsArgument) = new "sum_merge" "sum_merge";
    #[cfg(feature = "papers")]
    sum_features(SystemSumsArgument) = new "sum_features" "sum_features";
    #[cfg(feature = "papers")]
    sum_groups_first(SystemSumsArgument) = new "sum_groups" "sum_groups_first";
    #[cfg(feature = "papers")]
    sum_groups_next(SystemSumsArgument) = new "sum_groups" "sum_groups_next";
    #[cfg(feature = "papers")]
    sum_groups_last(SystemSumsArgument) = new "sum_groups" "sum_groups_last";
    #[cfg(feature = "papers")]
    sum_shared(SystemSumsArgument) = new "sum_atomics" "sum_shared";
    #[cfg(feature = "papers")]
    sum_adjust(SystemSumsArgument) = new "sum_atomics" "sum_adjust";
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
