#!/bin/bash
# tools/pictures/make.sh PLAN.html REPORT.html: the two pictures of the root README, from pages that
# `millrace plan --html` and `millrace report` have written:
#   millrace plan configs/llama_1b.json --set execution.backend=cuda --world 8 --machine h200 \
#     --html plan.html
#   millrace report runs/quickstart        (after the run of README's first command)
# Needs chromium and pngquant. 300 KiB at most for both.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
(($# == 2)) || { sed -n '2,7s/^# \?//p' "$0" >&2; exit 2; }

# Picture PAGE NAME HEIGHT: the page's upper part, 1120 pixels wide.
Picture() {
  local page raw
  page=$(realpath "$1")
  raw=$(mktemp --suffix=.png)
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1120,"$3" \
    --screenshot="$raw" "file://$page" 2> /dev/null
  pngquant --force --strip --speed 1 --output "$here/$2" 128 "$raw"
  rm "$raw"
}

Picture "$1" plan.png 1420
Picture "$2" report.png 974
du -bc "$here"/*.png
