"""Completion of SCons's form of a command line, `target=… model=… GOAL`, beside what shtab completes.

shtab completes commands and options of an argparse parser. Words of the form NAME=VALUE, which may stand in
any order, are no arguments of a parser: the scripts here complete them, and leave all other words to shtab's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

# In a script: $values has a `case` line for each option whose values are known, $options the options with `=`
# after them, $goals the goals. Of a value of several entries, such as target=a,b, the last one is completed.
# In bash, COMP_WORDS and what a completion replaces are divided at `=`: the word is read from COMP_LINE.
_BASH = """
_kiln_words() {
  local line="$${COMP_LINE:0:COMP_POINT}" values= prefix=
  local word="$${line##*[[:space:]]}" before="$${line%"$${line##*[[:space:]]}"}"
  if [[ $$word == [a-z]*=* ]]; then
    case "$${word%%=*}" in
$values
    *) ;;
    esac
    word="$${word#*=}"
    [[ $$word == *,* ]] && prefix="$${word%,*}," && word="$${word##*,}"
    COMPREPLY=($$(compgen -P "$$prefix" -W "$$values" -- "$$word"))
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($$(compgen -P "$$prefix" -f -- "$$word"))
  elif [[ $$before =~ [[:space:]][a-z]+= ]]; then
    COMPREPLY=($$(compgen -W "$goals $options" -- "$$word"))
    [[ $${#COMPREPLY[@]} = 1 && $${COMPREPLY[0]} == *= ]] && compopt -o nospace
  else
    _shtab_kiln "$$@"
    if [[ $$before =~ ^[[:space:]]*[^[:space:]]+[[:space:]]+$$ && -n $$word || $${#COMPREPLY[@]} = 0 ]]; then
      COMPREPLY+=($$(compgen -W "$options" -- "$$word"))
      [[ $${#COMPREPLY[@]} = 1 && $${COMPREPLY[0]} == *= ]] && compopt -o nospace
    fi
  fi
  return 0
}
complete -o bashdefault -F _kiln_words kiln
"""
_ZSH = """
_kiln_words() {
  local -a values
  if [[ $$words[CURRENT] == [a-z]*=* ]]; then
    case "$${words[CURRENT]%%=*}" in
$values
    esac
    compset -P '*='
    compset -P '*,'
    compadd -a values
    _files
  elif (( $${words[(I)[a-z]*=*]} )); then
    compadd -- $goals
    compadd -S '' -- $options
  else
    _shtab_kiln "$$@"
    [[ $$CURRENT == 2 && -n $$words[2] ]] && compadd -S '' -- $options
  fi
}
"""
_FISH = """
function _kiln_words
  set -l token (commandline -ct)
  set -l values
  if string match -qr '^[a-z]+=' -- $$token
    set -l option (string split -m1 = -- $$token)
    switch $$option[1]
$values
    end
    set -l kept (string match -r '.*,' -- $$option[2])
    for value in $$values (__fish_complete_path (string replace -r '.*,' '' -- $$option[2]))
      echo "$$option[1]=$$kept$$value"
    end
  else if string match -qr '^[a-z]+=' -- (commandline -opc)[2..-1]
    string split ' ' -- '$goals $options'
  else if test -n "$$token" -a (count (commandline -opc)) -eq 1
    string split ' ' -- '$options'
  end
end
complete -c kiln -ka '(_kiln_words)'
"""
_CASES = {
    "bash": "    {name}) values='{values}' ;;",
    "zsh": "    {name}) values=({values}) ;;",
    "fish": "    case {name}\n      set values {values}",
}
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def with_words(
    text: str, shell: str, options: Sequence[str], goals: Sequence[str], values: Mapping[str, Sequence[str]]
) -> str:
    """shtab's script for a shell, `text`, which also completes `options` as NAME=VALUE, and `goals`.

    `values`: the known values of an option, by its name; every value may also be the path of a file. For
    shells other than bash, zsh and fish the script is as shtab made it.
    """
    if shell not in _SCRIPTS:
        return text
    cases = [_CASES[shell].format(name=name, values=" ".join(known)) for name, known in values.items()]
    own = Template(_SCRIPTS[shell]).substitute(
        values="\n".join(cases), goals=" ".join(goals), options=" ".join(f"{name}=" for name in options)
    )
    if shell == "zsh":  # its last lines register a function, or call it where the file is one of fpath
        head, registered = text.rsplit("typeset -A opt_args\n", 1)
        return f"{head}{own}\ntypeset -A opt_args\n{registered.replace('_shtab_kiln', '_kiln_words')}"
    return text + own
