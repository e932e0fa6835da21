#!/bin/bash
# Waits until a TCP port accepts connections, then runs a command.
# Usage: wait-for-it.sh HOST:PORT [-s] [-q] [-t SECONDS] [-- COMMAND [ARGUMENT...]]
#   -s, --strict   run COMMAND only when the port was reached
#   -q, --quiet    print nothing
#   -t, --timeout  give up after SECONDS (default 15); 0: never give up
# Exit code: that of COMMAND. Without COMMAND: 0 when the port was reached, 124 when not.

host='' port='' strict=no quiet=no timeout=15
while (($#)); do
    case $1 in
        -s | --strict) strict=yes ;;
        -q | --quiet) quiet=yes ;;
        -h) host=$2; shift ;;
        --host=*) host=${1#*=} ;;
        -p) port=$2; shift ;;
        --port=*) port=${1#*=} ;;
        -t) timeout=$2; shift ;;
        --timeout=*) timeout=${1#*=} ;;
        --) shift; break ;;
        *:*) host=${1%:*}; port=${1##*:} ;;
        *) echo "wait-for-it.sh: unknown argument $1" >&2; exit 1 ;;
    esac
    shift
done
if [[ -z $host || -z $port ]]; then
    echo "wait-for-it.sh: give HOST:PORT" >&2
    exit 1
fi

say() { [[ $quiet == yes ]] || echo "$1" >&2; }

# An attempt has a time limit of 1 s, because an attempt whose SYN is dropped would take two minutes.
connects() {
    local answer=''
    read -r -t 1 answer < <(exec 2> /dev/null 3<> "/dev/tcp/$host/$port" && echo open)
    [[ $answer == open ]] && return
    kill $! 2> /dev/null
    return 1
}

reached=124
started=$SECONDS
while ((timeout == 0 || SECONDS - started < timeout)); do
    if connects; then
        reached=0
        break
    fi
    sleep 0.1
done

if ((reached == 0)); then
    say "$host:$port accepts connections"
else
    say "$host:$port did not accept a connection within $timeout seconds"
    [[ $strict == yes ]] && exit "$reached"
fi
(($#)) && exec "$@"
exit "$reached"
