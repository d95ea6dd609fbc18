# shellcheck shell=bash
# For scripts that keep a folder of their own, such as a virtual environment, where the user wants
# it. To be sourced.

# Removes a folder that this project has made, so that it can be made anew, and leaves a mark in its
# place: one without it, such as the user's own environment, is not removed. STAMP is the file by
# which those without a mark, of earlier versions, are known.
remake_own_folder() { # DIRECTORY STAMP
  local directory="$1" stamp="$2" mark=".made-by-sluice"
  if [ -n "$(ls -A "$directory" 2>/dev/null)" ] && ! [ -e "$directory/$mark" ] &&
    ! [ -e "$directory/$stamp" ]; then
    echo "$directory is not empty and was not made by this script; name another directory"
    return 1
  fi
  rm -rf "$directory"
  mkdir -p "$directory" && touch "$directory/$mark"
}
