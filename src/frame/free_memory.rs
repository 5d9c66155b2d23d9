//! How much memory this process may still take.

use sysinfo::{MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

/// Bytes that are free: of the machine, and of the control group that the process is in. What only caches files counts as free.
/// `None` if the system does not say.
pub fn free_memory() -> Option<u64> {
    memory().map(|memory| memory.free)
}

/// The memory of the machine and of the control group that this process is in, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Of the machine.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    pub total: u64,
    pub free: u64,
    /// What the control group may take, if that is less.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    pub limit: Option<u64>,
}

/// The memory, if the system says how much there is.
pub fn memory() -> Option<Memory> {
    if !sysinfo::IS_SUPPORTED_SYSTEM {
        return None;
    }
    let kinds = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let mut system = System::new_with_specifics(kinds);
    let machine = Some(system.available_memory()).filter(|bytes| *bytes > 0)?;
    let here = sysinfo::get_current_pid().ok()?;
    let kinds = ProcessRefreshKind::nothing().without_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[here]), false, kinds);
    // In a container, the path of the process's group may be that outside of it. Then the group is the root of what is seen here.
    let group = system.process(here).and_then(sysinfo::Process::cgroup_limits).or_else(|| system.cgroup_limits());
    // The free memory of a group leaves out its cached files, which make room when memory is asked for.
    let free = group.as_ref().map(|group| group.total_memory.saturating_sub(group.rss));
    let total = system.total_memory();
    Some(Memory {
        total,
        free: free.map_or(machine, |group| group.min(machine)),
        limit: group.map(|group| group.total_memory).filter(|limit| *limit < total),
    })
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(memory_that_is_taken_is_not_free);
    fn memory_that_is_taken_is_not_free() {
        const TAKEN: u64 = 1 << 30;
        let mut seen = Vec::new();
        // Other tests and processes free memory meanwhile, but not each time.
        for _ in 0..5 {
            let before = free_memory().unwrap();
            let mut taken = vec![0u8; TAKEN as usize];
            taken.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            // A system may count the memory of a control group only every few seconds.
            for _ in 0..100 {
                let after = free_memory().unwrap();
                if after + TAKEN / 2 < before {
                    return;
                }
                seen.push((before, after));
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            assert_eq!(std::hint::black_box(&taken)[4096], 1);
        }
        panic!("free before and after {TAKEN} bytes were taken: {:?}", seen.iter().step_by(20).collect::<Vec<_>>());
    }
}
