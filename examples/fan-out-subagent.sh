#!/usr/bin/env bash
# Starts one process subagent per line of a task list, all at once, waits for all of them, and proves that nothing is
# left. The keepers look after the subagents, so this script may die and be started again with the same session name.
#
#   examples/fan-out-subagent.sh TASKS [SESSION]
#   ZAPMYCO_MODEL=script:examples/fan-out.yaml examples/fan-out-subagent.sh examples/tasks.txt
#
# Exits 0 when every subagent completed, 1 when one ended otherwise.
set -euo pipefail

zapmyco=${ZAPMYCO:-zapmyco}
for program in "$zapmyco" jq; do
  command -v "$program" >/dev/null || { echo "$0: $program is not installed (ZAPMYCO=PATH names another zapmyco)" >&2; exit 2; }
done
[ $# -ge 1 ] || { echo "usage: $0 TASKS [SESSION]" >&2; exit 2; }
tasks=$1
export ZAPMYCO_SESSION=${2:-fan-out-$$}

while IFS= read -r task || [ -n "$task" ]; do
  [ -n "$task" ] && "$zapmyco" subagent spawn --json -- "$task" | jq -r '"started \(.id)  \(.title)"'
done <"$tasks"

# 10 means that something still runs; each poll waits for up to half a minute and uses no model.
status=10
while [ "$status" -eq 10 ]; do
  status=0
  "$zapmyco" subagent poll --wait 25 >/dev/null || status=$?
done

"$zapmyco" subagent list
"$zapmyco" jobs sweep --session "$ZAPMYCO_SESSION"
[ "$status" -eq 0 ]
