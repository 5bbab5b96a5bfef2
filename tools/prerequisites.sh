#!/bin/sh
# Finds a Python to build with and checks what the build needs from the machine.
# Prints the Python's path and exits 0, or prints one line that says what to install and exits 1.
# Usage: prerequisites.sh [PYTHON]

fail() { echo "kvwise needs $1"; exit 1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

python=$1
if [ -n "$python" ]; then
    command -v "$python" >/dev/null 2>&1 || fail "Python 3.11 or newer, but PYTHON=$python is not a program: install it or name another"
    new_enough "$python" || fail "Python 3.11 or newer, but $python is $("$python" -V 2>&1): run make PYTHON=/path/to/python3.11"
else
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if new_enough "$candidate"; then python=$candidate; break; fi
    done
fi
if [ -z "$python" ]; then
    found=$(python3 -V 2>/dev/null) || found="no Python"
    fail "Python 3.11 or newer, but found $found: install python3.11, or run make PYTHON=/path/to/python3.11"
fi

"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
    fail "Python's venv module: install python3-venv (Debian, Ubuntu: apt-get install python3-venv)"
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' >/dev/null 2>&1 ||
    fail "Python.h: install Python's headers (Debian, Ubuntu: apt-get install python3-dev; Fedora: dnf install python3-devel)"

for compiler in ${CXX:-c++ g++ clang++}; do
    if echo 'int main() {}' | "$compiler" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1; then
        command -v "$python"
        exit 0
    fi
done
fail "a C++20 compiler: install g++ 10 or clang 12, or newer (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++)"
