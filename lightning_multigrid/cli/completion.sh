# Completion of lightning-multigrid in bash and zsh, as `lightning-multigrid completion` prints it. It starts no Python.
if [ -n "${ZSH_VERSION-}" ]; then
    autoload -U +X compinit bashcompinit
    whence compdef > /dev/null || compinit
    bashcompinit
fi

_lightning_multigrid() {
    local word="${COMP_WORDS[COMP_CWORD]}" command="" words=""
    [ "$COMP_CWORD" -gt 1 ] && command="${COMP_WORDS[1]}"
    case "$command:$word" in
        CASES
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
# Where it finds no word, the shell completes names of files.
complete -o bashdefault -o default -F _lightning_multigrid lightning-multigrid
