#!/usr/bin/env bash
# A hook before shell calls: no forced push, no change outside the project by rm -r, and a log of every command.
# It gets one JSON object on stdin. Exit code 2 denies the call; what it writes to stderr is the reason for the model.
# Needs jq. See guard-hook.toml for the settings that run it.
set -euo pipefail

input=$(cat)
command=$(jq -r '.tool_input.command // ""' <<<"$input")
# Who asks: the session itself, or the type of the subagent whose call it is.
who=$(jq -r '.agent_type // "main"' <<<"$input")
printf '%s\t%s\n' "$who" "$command" >>"${GUARD_LOG:-$HOME/.zapmyco/guard.log}"

deny() {
  echo "$1" >&2
  exit 2
}

case $command in
  *"git push"*--force* | *"git push"*" -f"*) deny "no forced push; push to a branch of your own instead" ;;
  *"rm -r"*" /"* | *"rm -r"*" ~"* | *"rm -fr"*" /"*) deny "rm -r only with paths inside the project" ;;
esac
