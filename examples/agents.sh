#!/usr/bin/env bash
# Agents in the process of their parent, without a key: one in the background with its notice, a message that steers it,
# the same agent taken up again after a restart, and an approval that nobody is there to give.
#
#   examples/agents.sh                 in a folder of its own
#   examples/agents.sh FOLDER          on the Rust files below FOLDER/src
set -euo pipefail

zapmyco=${ZAPMYCO:-zapmyco}
for program in "$zapmyco" jq; do
  command -v "$program" >/dev/null || { echo "$0: $program is not installed (ZAPMYCO=PATH names another zapmyco)" >&2; exit 2; }
done
script=$(cd "$(dirname "$0")" && pwd)/agents.yaml
if [ $# -gt 0 ]; then
  cd "$1"
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cd "$folder"
  mkdir src
  printf 'fn a() {}\n' > src/a.rs
  printf 'fn b() {\n}\n\n' > src/b.rs
fi
run() { "$zapmyco" run --model "script:$script" --output-format json "$@" 2>/dev/null; }

echo "== an agent in the background, steered while it works"
first=$(run --permission-mode yolo "background: how much is there below src?")
jq -r .result <<< "$first"

echo "== after a restart: the same agent, from its stored session"
session=$(jq -r .session_id <<< "$first")
run --permission-mode yolo --resume "$session" "background: and which is the longest?" | jq -r .result

echo "== an approval that nobody is there to give"
status=0
denied=$(run "write a file") || status=$?
jq -r '"exit \(.exit_code), denied: \(.permission_denials | map(.tool_name) | join(", "))"' <<< "$denied"
[ "$status" -eq 3 ] && [ ! -e made.txt ]
