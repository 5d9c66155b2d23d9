//! The parameters of the kernels of the papers' systems.

use super::*;

arguments! {
    /// For kernels that label rows by going through the centroids one by one.
    SystemAssignArgument<T> as "SystemAssign" {
        assign: AssignArgument<T>,
        width: i32,
        features: i32,
        across: i32,
        points: i32,
        slots: i32,
        unused: i32,
    }

    /// For kernels that add up features or count rows.
    SystemSumsArgument as "SystemSums" {
        rows: RowsArgument,
        labels: LabelsArgument,
        next: LabelsArgument,
        sums: SumsArgument,
        factors: u64,
        mass_to_integer: f64,
        control: u64,
        scratch: u64,
        scratch_next: u64,
        tables: u32,
        tables_next: u32,
        chunk: u32,
        points: u32,
        from_pairs: u32,
        unused: u32,
    }
}
