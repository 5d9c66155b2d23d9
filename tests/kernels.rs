//! Checks what ptxas reports about the kernels for Hopper. It needs no GPU. No kernel may spill a register, have a stack frame,
//! or have a `wgmma` that waits for the one before it. `make kernels` prints the table. Other GPU generations are built but not
//! checked.

use std::fmt::Write;
use std::fs;

const ARCHITECTURE: &str = "sm_90a";

#[derive(Default)]
struct Kernel {
    module: String,
    name: String,
    registers: u32,
    shared: u32,
    stack: u32,
    spilt: u32,
}

/// The number before `what`, as in `0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads`.
fn number(line: &str, what: &str) -> u32 {
    let part = line.split(',').find(|part| part.contains(what)).unwrap_or_default();
    part.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(0)
}

/// ptxas prints an entry and the architecture, then each function in it with its stack, then the resources of the entry.
fn read(module: &str, report: &str) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut ours = false;
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let mut quoted = rest.split('\'');
            let name = quoted.next().unwrap_or_default().to_owned();
            ours = quoted.nth(1) == Some(ARCHITECTURE);
            if ours {
                kernels.push(Kernel { module: module.into(), name, ..Kernel::default() });
            }
        }
        let Some(kernel) = kernels.last_mut().filter(|_| ours) else { continue };
        if line.contains("bytes stack frame") {
            kernel.stack += number(line, "stack frame");
            kernel.spilt += number(line, "spill stores").max(number(line, "spill loads"));
        } else if line.contains(": Used ") {
            kernel.registers = number(line, "registers");
            kernel.shared = number(line, "smem");
        }
    }
    kernels
}

#[test]
fn nothing_is_spilt() {
    let mut kernels = Vec::new();
    let mut problems = String::new();
    // There is a report for each module that was built. There is none if the target has no CUDA.
    for file in fs::read_dir(env!("OUT_DIR")).expect("OUT_DIR").map(|entry| entry.expect("readable").path()) {
        if file.extension().is_none_or(|extension| extension != "report") {
            continue;
        }
        let module = file.file_stem().expect("named").to_str().expect("ASCII");
        let report = fs::read_to_string(&file).expect("readable");
        for line in report.lines().filter(|line| line.contains("are serialized")) {
            writeln!(problems, "{module}: {line}").unwrap();
        }
        kernels.extend(read(module, &report));
    }
    kernels.sort_by(|a, b| (&a.module, &a.name).cmp(&(&b.module, &b.name)));
    println!("{:<20}{:<48}{:>10}{:>9}{:>7}{:>7}   {ARCHITECTURE}", "module", "kernel", "registers", "shared", "stack", "spilt");
    for kernel in &kernels {
        let Kernel { module, name, registers, shared, stack, spilt } = kernel;
        println!("{module:<20}{name:<48}{registers:>10}{shared:>9}{stack:>7}{spilt:>7}");
        if *stack > 0 || *spilt > 0 {
            writeln!(problems, "{module}: {name}: {stack} bytes of stack, {spilt} bytes spilt, {registers} registers").unwrap();
        }
    }
    assert!(problems.is_empty(), "expected no spills and no stack frame for {ARCHITECTURE}:\n{problems}");
}

#[test]
fn a_report_is_read() {
    let report = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
    32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers";
    let kernels = read("m", report);
    assert_eq!(kernels.len(), 1);
    let k = &kernels[0];
    assert_eq!((&k.name[..], k.registers, k.shared, k.stack, k.spilt), ("a", 255, 2048, 16, 12));
}
