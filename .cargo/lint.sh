#!/bin/sh
# Compiles a crate of the workspace as rustc.sh does, and proves two more things on the way. Clippy's driver is the
# compiler, because its lints cost nothing next to code generation. rustdoc then documents the library or program by the
# metadata its dependencies have by now, so that no dependency is checked once more for it.
#
# RUSTC_WORKSPACE_WRAPPER=.cargo/lint.sh turns it on. Cargo keeps what it builds apart from what rustc.sh builds, so a
# crate that was compiled without lints never passes for one that has none.
here=$(dirname "$0")
toolchain=$(dirname "$1")
"$here/rustc.sh" "$toolchain/clippy-driver" "$@" -D warnings || exit

case " $* " in
# Questions to the compiler, build scripts, and test programs, whose documentation nobody reads; nor that of programs of
# one file, which has no items to link to.
*" --crate-name ___ "* | *" -vV "* | *" --print"* | *" --crate-name build_script_"* | *" --test "*) exit ;;
*" "*"/src/bin/"*".rs "* | *" "*"/examples/"*".rs "*) exit ;;
esac
links=
case " $* " in
# All items of a program are private, and its documentation links to them, as in cargo doc.
*" --crate-type bin "*) links="-A rustdoc::private-intra-doc-links" ;;
esac
shift
# What is left out chooses the compiler's output; rustdoc has its own.
skip=
for argument; do
    shift
    case $skip$argument in
    --emit=* | skip*) skip= && continue ;;
    --out-dir | -C) skip=skip && continue ;;
    esac
    set -- "$@" "$argument"
done
pages=$(mktemp -d)
"$toolchain/rustdoc" --document-private-items -D warnings $links --out-dir "$pages" "$@"
status=$?
rm -r "$pages"
exit $status
