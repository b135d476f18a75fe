#!/usr/bin/env bash
# Runs one agent per line of a task list, several at a time, with GNU parallel; keeps each result as JSON.
#
#   examples/fan-out-run.sh TASKS RESULTS [zapmyco run options ...]
#   ZAPMYCO_MODEL=script:examples/fan-out.yaml examples/fan-out-run.sh examples/tasks.txt results
#
# TASKS holds one task per line. RESULTS gets N.json (the result object) and N.log (progress and errors) per task.
# JOBS sets how many run at once (default 4). Exits 0 when every task was done, 1 when one was not.
set -euo pipefail

zapmyco=${ZAPMYCO:-zapmyco}
for program in "$zapmyco" parallel jq; do
  command -v "$program" >/dev/null || { echo "$0: $program is not installed (ZAPMYCO=PATH names another zapmyco)" >&2; exit 2; }
done
[ $# -ge 2 ] || { echo "usage: $0 TASKS RESULTS [options ...]" >&2; exit 2; }
tasks=$1
results=$2
shift 2
mkdir -p "$results"

# A task is one argument whatever it holds; `--` keeps one that starts with a dash from being read as an option.
status=0
parallel --will-cite --jobs "${JOBS:-4}" --arg-file "$tasks" \
  "$zapmyco" run --output-format json "${@@Q}" -- '{}' '>' "$results"/'{#}.json' '2>' "$results"/'{#}.log' || status=$?

for file in "$results"/*.json; do
  jq -r --arg name "$(basename "$file" .json)" \
    '"\($name)\t\(if .ok then "done" else "failed (exit \(.exit_code))" end)\t\(.result | gsub("\n"; " ") | .[0:100])"' "$file"
done | sort -n

# parallel exits with the number of failed tasks.
[ "$status" -eq 0 ]
