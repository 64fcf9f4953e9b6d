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

_godwit_qmp_commands='query-version query-commands query-events query-qmp-schema query-status query-name
	query-uuid query-kvm query-memory-size-summary query-cpus-fast stop cont system_reset
	system_powerdown quit migrate migrate-incoming migrate_cancel migrate-continue x-migrate-resolve
	query-migrate migrate-set-parameters query-migrate-parameters migrate-set-capabilities
	query-migrate-capabilities calc-dirty-rate query-dirty-rate set-vcpu-dirty-limit
	cancel-vcpu-dirty-limit query-vcpu-dirty-limit'

# Whether the words before this one end with a control address: a path, or "unix", ":" and a path.
_godwit_address_given() {
	[[ ${COMP_WORDS[COMP_CWORD - 1]} == */* ]] && return
	((COMP_CWORD > 3)) && [[ ${COMP_WORDS[COMP_CWORD - 2]} == : ]]
}

_godwit() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
	local IFS=$' \t\n'
	COMPREPLY=()

	# "unix:/tmp/a" is several words to bash: what follows the colon is a path.
	if [[ $before == : && ${COMP_WORDS[COMP_CWORD - 2]-} == unix || $word == : ]]; then
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
	--document)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return
		;;
	--output)
		mapfile -t COMPREPLY < <(compgen -d -- "$word")
		return
		;;
	--case)
		mapfile -t COMPREPLY < <(compgen -W 'idle hot untouched' -- "$word")
		return
		;;
	--without)
		mapfile -t COMPREPLY < <(compgen -W 'godwit qemu bare' -- "$word")
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
	elif [[ $command == bench ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'migrate' -- "$word")
	elif [[ $command == qmp ]] && _godwit_address_given; then
		mapfile -t COMPREPLY < <(compgen -W "$_godwit_qmp_commands" -- "$word")
	elif [[ $command == migrate || $command == status || $command == qmp ]]; then
		compopt -o nospace
		if [[ $word == [./]* ]]; then
			mapfile -t COMPREPLY < <(compgen -f -- "$word")
		else
			mapfile -t COMPREPLY < <(compgen -W 'unix:' -- "$word")
		fi
	fi
}

complete -F _godwit godwit
