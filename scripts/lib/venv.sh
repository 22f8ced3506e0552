# Sourced by the scripts beside it. Makes virtual environments next to the project, and leaves them alone when nothing changed.

# The tests start hundreds of processes, the demo a dozen: without bytecode on disk each compiles perdure anew.
unset PYTHONDONTWRITEBYTECODE

# find_python: prints the oldest usable Python from 3.11 on, so that what we run is what we promise.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "perdure needs Python 3.11 or newer and found none on PATH; set PYTHON=/path/to/python3.11" >&2
    return 1
}

# find_version 3.12: prints the interpreter of that version, also one that pyenv has and does not show; nothing if there is none.
find_version() {
    PYENV_VERSION=$1 "python$1" -c 'import sys; print(sys.executable)' 2>/dev/null || true
}

# digest FILE...: one line that changes when a file does.
digest() { cat "$@" | cksum | tr ' ' -; }

# use_venv FOLDER PYTHON WHAT FILE... -- REQUIREMENT...: makes FOLDER with PYTHON and pip-installs the requirements,
# unless that was done before with the same FILEs. The source is installed in place, so edits need no new installation.
use_venv() {
    local folder=$1 python=$2 what=$3 files=() stamp
    shift 3
    while [ "$1" != -- ]; do files+=("$1"); shift; done
    shift
    stamp="$folder/.installed-$what-$(digest "${files[@]}")"
    [ -e "$stamp" ] && return
    if ! "$folder/bin/python" -c 'import pip' 2>/dev/null; then
        rm -rf "$folder"
        "$python" -m venv "$folder" || {
            echo "could not make a virtual environment with $python (on Debian: apt install python3-venv)" >&2
            return 1
        }
    fi
    echo "installing into $folder ($*)" >&2
    rm -f "$folder/.installed-$what-"*
    # What is imported is compiled when it is imported.
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
    touch "$stamp"
}
