# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of godwit's command line for bash.

_godwit_options() {
	case $1 in
	run)
		echo --kernel --initrd --append --guest --incoming --memory --memory-backing --cpus --cpu \
			--serial --name --uuid --control --paused --dirty-log --dirty-ring --no-reboot --no-shutdown \
			--owner-record --insecure --allow-exec --log-level --help
		;;
	migrate) echo --check --downtime-limit --max-bandwidth --insecure --timeout --detach --quiet --json --help ;;
	status) echo --json --help ;;
	qmp) echo --timeout --help ;;
	demo) echo --memory --hot --fill --cpus --rounds --memory-backing --guest --keep --json --help ;;
	guest) echo --write --help ;;
	bench) echo --runs --case --cpus --backings --without --json --output --document --part --check --help ;;
	*) echo --help --version ;;
	esac
}

_godwit() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
	local IFS=$' \t\n'
	COMPREPLY=()

	# "unix:/tmp/a" is several words to bash: what follows the colon is a path.
	if [[ $before == : || $word == : ]]; then
		[[ $word == : ]] && word=
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return
	fi
	if ((COMP_CWORD == 1)); then
		mapfile -t COMPREPLY < <(compgen -W "run migrate status qmp demo guest bench $(_godwit_options)" -- "$word")
		return
	fi
	case $before in
	--kernel | --initrd | --write)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return
		;;
	--memory-backing)
		mapfile -t COMPREPLY < <(compgen -W 'private shared hugetlb' -- "$word")
		return
		;;
	--cpu)
		mapfile -t COMPREPLY < <(compgen -W 'host baseline' -- "$word")
		return
		;;
	--log-level)
		mapfile -t COMPREPLY < <(compgen -W 'error warning info debug' -- "$word")
		return
		;;
	--guest)
		mapfile -t COMPREPLY < <(compgen -W 'stress idle' -- "$word")
		return
		;;
	--serial)
		mapfile -t COMPREPLY < <(compgen -f -W 'none stdio unix:' -- "$word")
		return
		;;
	--owner-record)
		mapfile -t COMPREPLY < <(compgen -f -W 'off' -- "$word")
		return
		;;
	--control)
		compopt -o nospace
		mapfile -t COMPREPLY < <(compgen -W 'unix:' -- "$word")
		return
		;;
	--incoming)
		compopt -o nospace
		mapfile -t COMPREPLY < <(compgen -W 'defer unix: tcp: fd: exec:' -- "$word")
		return
		;;
	esac
	if [[ $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_godwit_options "$command")" -- "$word")
	elif [[ $command == migrate || $command == status || $command == qmp ]]; then
		compopt -o nospace
		mapfile -t COMPREPLY < <(compgen -W 'unix:' -- "$word")
	fi
}

complete -F _godwit godwit
