#!/usr/bin/env bash
# Keeps one comment on the pull request: the one whose first line is this key's marker is updated, else one is added.
set -euo pipefail

body=$FOLDER/report.md
number=$(jq -r '.pull_request.number // empty' "${GITHUB_EVENT_PATH:?}")
if [ -z "$number" ]; then echo "not a pull request: no comment"; exit 0; fi
if [ ! -f "$body" ]; then echo "::notice::trace-doctor made no report: no comment"; exit 0; fi
if [ "$COMMENT" = on-change ] && [ "$MOVED" != true ]; then echo "nothing moved: no comment"; exit 0; fi

marker=$(head -n 1 "$body")
api=${GITHUB_API_URL:?}/repos/${GITHUB_REPOSITORY:?}/issues
call() { # METHOD URL [BODY-FILE]: the answer on stdout
  curl --silent --show-error --fail-with-body --retry 2 --max-time 60 -X "$1" "$2" \
    -H "Authorization: Bearer $TOKEN" -H "Accept: application/vnd.github+json" -H "X-GitHub-Api-Version: 2022-11-28" \
    ${3:+--data-binary "@$3"}
}

mine=""
for page in $(seq 1 50); do
  comments=$(call GET "$api/$number/comments?per_page=100&page=$page") || { echo "::notice::comments can't be read (a fork?): see the job summary"; exit 0; }
  mine=$(jq -r --arg marker "$marker" 'map(select(.body | split("\n")[0] | rtrimstr("\r") == $marker)) | first | .id // empty' <<<"$comments")
  if [ -n "$mine" ] || [ "$(jq length <<<"$comments")" -lt 100 ]; then break; fi
done

request=$(mktemp)
trap 'rm -f "$request"' EXIT
jq -Rs '{body: .}' "$body" >"$request"
if [ -n "$mine" ]; then
  call PATCH "$api/comments/$mine" "$request" >/dev/null || { echo "::notice::the comment can't be updated (a fork?): see the job summary"; exit 0; }
else
  call POST "$api/$number/comments" "$request" >/dev/null || { echo "::notice::no comment can be written (a fork?): see the job summary"; exit 0; }
fi
