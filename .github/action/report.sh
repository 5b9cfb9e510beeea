#!/usr/bin/env bash
# Makes the reports of action.yml: Markdown into the job summary, JSON, HTML and Markdown into a folder, values into the outputs.
# The exit code of trace-doctor becomes the output `code`, so that artifact and comment are made before the job fails.
set -uo pipefail

folder=${RUNNER_TEMP:?}/trace-doctor-${KEY:-report}
mkdir -p "$folder"
if ! command -v trace-doctor >/dev/null; then
  python3 -m venv "$RUNNER_TEMP/trace-doctor-venv" && "$RUNNER_TEMP/trace-doctor-venv/bin/pip" install --quiet "${VERSION:-trace-doctor}" || exit 2
  PATH="$RUNNER_TEMP/trace-doctor-venv/bin:$PATH"
fi

shared=(--force --quiet)
[ -z "${DEVICE:-}" ] || shared+=(--device "$DEVICE")
[ -z "${CONFIG:-}" ] || shared+=(--config "$CONFIG")
[ "${REDACT:-true}" != true ] || shared+=(--redact)
gates=()
while IFS= read -r gate; do
  [ -z "${gate// /}" ] || gates+=(--fail-on "$gate")
done <<<"${FAIL_ON:-}"

json=$folder/report.json html=$folder/report.html markdown=$folder/report.md
code=0
if [ -n "${BASELINE:-}" ]; then
  # --no-config: its gates are those of the comparison below
  trace-doctor analyze "$TRACES" "${shared[@]}" -o "$json" -o "$html" || code=$?
  if [ "$code" -le 1 ]; then
    code=0
    trace-doctor compare "$BASELINE" "$json" "${shared[@]}" ${gates[@]+"${gates[@]}"} -o "$folder/comparison.json" -o "$markdown" || code=$?
  fi
else
  trace-doctor analyze "$TRACES" "${shared[@]}" ${gates[@]+"${gates[@]}"} -o "$json" -o "$html" -o "$markdown" || code=$?
fi

case $code in 0) verdict=pass ;; 1) verdict=fail ;; 3) verdict=inconclusive ;; *) verdict=error ;; esac
moved=true
if [ -f "$folder/comparison.json" ]; then
  moved=$(jq -r '([.differences[] | select(.proven == true)] + [.gates[] | select(.result != "pass")] + .findings.new + .findings.fixed) | length > 0' "$folder/comparison.json")
fi
if [ -f "$markdown" ]; then
  sed -i "1s/.*/<!-- trace-doctor:${KEY//[^A-Za-z0-9_.-]/-} -->/" "$markdown"
  cat "$markdown" >>"${GITHUB_STEP_SUMMARY:?}"
fi
{
  echo "verdict=$verdict"
  echo "code=$code"
  echo "folder=$folder"
  echo "moved=$moved"
  echo "mfu=$([ -f "$json" ] && jq -r '.metrics.mfu // empty' "$json")"
  echo "report-json=$json"
  echo "report-html=$html"
} >>"${GITHUB_OUTPUT:?}"
