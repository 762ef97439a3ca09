# Completion of muster and torchrun for bash: source this file, or put it into
# ~/.local/share/bash-completion/completions/ as muster and as torchrun.
# Written by `muster completion bash`.
# shellcheck shell=bash
_muster()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local first=1 equals= words i
    COMPREPLY=()
    [[ $previous == = || $current == = ]] && equals=yes
    [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $current == = ]] && current=
    if [[ ${COMP_WORDS[0]##*/} != torchrun ]]; then
        words=
        ((COMP_CWORD == 1)) && words='run store bench trace doctor status fsdp ckpt completion help version'
        case ${COMP_WORDS[1]} in
        completion) words=${words:-bash zsh tcsh} ;;
        help) words=${words:-run store bench trace doctor status fsdp ckpt completion} ;;
        bench)
            if [[ $current == -* ]]; then
                words='--ranks --engine --memory --tune --tune=links -b -e -f -i -n -w -c -o -d -r --help'
            elif [[ $previous == -o ]]; then
                words='sum prod min max avg band bor bxor'
            elif [[ $previous == -d ]]; then
                words='int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64'
            elif [[ $previous == --memory ]]; then
                words='private own'
            elif [[ $previous != -* ]]; then
                words='all_reduce broadcast reduce all_gather gather scatter'
                words+=' reduce_scatter all_to_all sendrecv barrier all'
            fi
            ;;
        trace)
            if ((COMP_CWORD == 2)); then
                words='merge report --help'
            elif [[ $current == -* ]]; then
                words='--output --help'
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$current")
                return
            fi
            ;;
        store) words=${words:---port --host --help} ;;
        status)
            if [[ $previous == --*-file || $previous == --tls-* ]]; then
                mapfile -t COMPREPLY < <(compgen -f -- "$current")
                return
            elif [[ $current == -* ]]; then
                words='--watch --json --rdzv-id --secret-file --tls-cert --tls-key --tls-ca --help'
            fi
            ;;
        fsdp)
            if ((COMP_CWORD == 2)); then
                words='plan --help'
            elif [[ $previous == --units ]]; then
                mapfile -t COMPREPLY < <(compgen -f -- "$current")
                return
            elif [[ $current == -* ]]; then
                words='--gpt --units --hosts --ranks-per-host --states --bf16 --hybrid --prefetch'
                words+=' --keep-gathered --memory --json --help'
            fi
            ;;
        ckpt)
            if ((COMP_CWORD == 2)); then
                words='ls show verify diff import reshard export prune --help'
            elif [[ $current == -* ]]; then
                words='--help'
                case ${COMP_WORDS[2]} in
                import) words+=' --to --step --only --skip' ;;
                reshard) words+=' --to --ranks --step --keep --only --skip' ;;
                export) words+=' --to --shard-size --rename --only --skip' ;;
                show) words+=' --only --skip --json' ;;
                diff) words+=' --only --skip' ;;
                prune) words+=' --keep' ;;
                esac
            elif [[ ! $previous =~ ^--(only|skip|step|keep|ranks|rename|shard-size)$ ]]; then
                mapfile -t COMPREPLY < <(compgen -f -- "$current")
                return
            fi
            ;;
        doctor)
            if [[ $previous == --only ]]; then
                words='names interfaces ports clock limits memory temporary kernel processors gpus infiniband nccl environment nodes network'
                i=
                [[ $current == *,* ]] && i=${current%,*},
                mapfile -t COMPREPLY < <(compgen -P "$i" -W "$words" -- "${current##*,}")
                return
            elif [[ $previous == --nnodes || $previous == --timeout || $previous == --rdzv-endpoint ]]; then
                return
            else
                words=${words:---rdzv-endpoint --nnodes --timeout --only --list --json --help}
            fi
            ;;
        esac
        if [[ -n $words || ${COMP_WORDS[1]} != run ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
            return
        fi
        first=2
    fi
    for ((i = first; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        =) ;;
        --mpi) [[ ${COMP_WORDS[i + 1]} == = ]] && i=$((i + 2)) ;;
        --nnodes|--nproc-per-node|--nproc_per_node|--rdzv-backend|--rdzv_backend|--rdzv-endpoint|--rdzv_endpoint|--rdzv-id|--rdzv_id|--rdzv-conf|--rdzv_conf|--max-restarts|--max_restarts|--monitor-interval|--monitor_interval|--start-method|--start_method|--event-log-handler|--event_log_handler|--role|--log-dir|--log_dir|-r|--redirects|-t|--tee|--log-line-prefix-template|--log_line_prefix_template|--local-ranks-filter|--local_ranks_filter|--duplicate-stdout-filters|--duplicate_stdout_filters|--duplicate-stderr-filters|--duplicate_stderr_filters|--node-rank|--node_rank|--master-addr|--master_addr|--master-port|--master_port|--local-addr|--local_addr|--print-completion|--print_completion|--logs-specs|--logs_specs|--numa-binding|--numa_binding|--signals-to-handle|--signals_to_handle|--shutdown-timeout|--shutdown_timeout|--stderr-tail|--stderr_tail|--spares|--preload|--survivors|--preempt-signal|--preempt_signal|--preempt-grace|--preempt_grace|--preempt-term|--preempt_term|--restart-backoff|--restart_backoff|--detached|--outcome|--scheduler)
            [[ ${COMP_WORDS[i + 1]} == = ]] && i=$((i + 1))
            i=$((i + 1))
            ((i < COMP_CWORD)) || break
            ;;
        -*) ;;
        *)
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
            return
            ;;
        esac
    done
    case $previous in
    --nnodes)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --nproc-per-node|--nproc_per_node)
        mapfile -t COMPREPLY < <(compgen -W 'auto cpu gpu' -- "$current")
        return
        ;;
    --rdzv-backend|--rdzv_backend)
        mapfile -t COMPREPLY < <(compgen -W 'c10d static muster etcd-v2 etcd etcd-v3' -- "$current")
        return
        ;;
    --rdzv-endpoint|--rdzv_endpoint)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --rdzv-id|--rdzv_id)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --rdzv-conf|--rdzv_conf)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --max-restarts|--max_restarts)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --monitor-interval|--monitor_interval)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --start-method|--start_method)
        mapfile -t COMPREPLY < <(compgen -W 'spawn fork forkserver' -- "$current")
        return
        ;;
    --event-log-handler|--event_log_handler)
        mapfile -t COMPREPLY < <(compgen -W 'null console' -- "$current")
        return
        ;;
    --role)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --log-dir|--log_dir)
        mapfile -t COMPREPLY < <(compgen -d -- "$current")
        return
        ;;
    -r|--redirects)
        mapfile -t COMPREPLY < <(compgen -W '0 1 2 3' -- "$current")
        return
        ;;
    -t|--tee)
        mapfile -t COMPREPLY < <(compgen -W '0 1 2 3' -- "$current")
        return
        ;;
    --log-line-prefix-template|--log_line_prefix_template)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --local-ranks-filter|--local_ranks_filter)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --duplicate-stdout-filters|--duplicate_stdout_filters)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --duplicate-stderr-filters|--duplicate_stderr_filters)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --node-rank|--node_rank)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --master-addr|--master_addr)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --master-port|--master_port)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --local-addr|--local_addr)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --print-completion|--print_completion)
        mapfile -t COMPREPLY < <(compgen -W 'bash zsh tcsh' -- "$current")
        return
        ;;
    --logs-specs|--logs_specs)
        mapfile -t COMPREPLY < <(compgen -W 'default' -- "$current")
        return
        ;;
    --numa-binding|--numa_binding)
        mapfile -t COMPREPLY < <(compgen -W 'node socket exclusive core-complex' -- "$current")
        return
        ;;
    --signals-to-handle|--signals_to_handle)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --shutdown-timeout|--shutdown_timeout)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --stderr-tail|--stderr_tail)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --spares)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --preload)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --survivors)
        mapfile -t COMPREPLY < <(compgen -W 'stop continue' -- "$current")
        return
        ;;
    --preempt-signal|--preempt_signal)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --preempt-grace|--preempt_grace)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --preempt-term|--preempt_term)
        mapfile -t COMPREPLY < <(compgen -W 'half now' -- "$current")
        return
        ;;
    --restart-backoff|--restart_backoff)
        mapfile -t COMPREPLY < <(compgen -W '' -- "$current")
        return
        ;;
    --detached)
        mapfile -t COMPREPLY < <(compgen -W 'stop leave' -- "$current")
        return
        ;;
    --outcome)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
        ;;
    --scheduler)
        mapfile -t COMPREPLY < <(compgen -W 'auto slurm kubernetes mpi none' -- "$current")
        return
        ;;
    --mpi)
        if [[ $equals ]]; then
            mapfile -t COMPREPLY < <(compgen -W 'auto pmi1 pmix none' -- "$current")
            return
        fi
        ;;
    esac
    if [[ $current == -* ]]; then
        words='--help --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone --max-restarts --monitor-interval --start-method --event-log-handler --role --module --no-python --run-path --log-dir --redirects --tee --log-line-prefix-template --local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --node-rank --master-addr --master-port --local-addr --print-completion --logs-specs --numa-binding --signals-to-handle --shutdown-timeout --virtual-local-rank --merge-logs --stderr-tail --spares --preload --survivors --preempt-signal --preempt-grace --preempt-term --restart-backoff --detached --outcome --scheduler --mpi --use-env --version'
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -o filenames -F _muster muster torchrun
