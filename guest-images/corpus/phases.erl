%% Phases of known shares of the CPU: erl -run phases main SECONDS. Prints `phase NAME SECONDS`, by the process's CPU clock.
-module(phases).
-export([main/1]).

fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).

sieve([], Count) -> Count;
sieve([Prime | Rest], Count) -> sieve([Number || Number <- Rest, Number rem Prime =/= 0], Count + 1).

text(N) ->
    Items = ["item " ++ integer_to_list(Number) || Number <- lists:seq(1, N)],
    length(string:lexemes(lists:flatten(lists:join(";", Items)), ";")).

run_fib() -> 89 = fib(11).
run_sieve() -> 168 = sieve(lists:seq(2, 1000), 0).
run_text() -> 50 = text(50).

cpu_seconds() ->
    {Milliseconds, _} = erlang:statistics(runtime),
    Milliseconds / 1000.

run_until(Run, End) ->
    Run(),
    case cpu_seconds() of
        Now when Now < End -> run_until(Run, End);
        Now -> Now
    end.

run_phases(Done, Seconds, Phases) when Done >= Seconds -> Phases;
run_phases(Before, Seconds, Phases) ->
    Done = Before + 0.25,
    Measure = fun({Name, Run, Weight, Used}) ->
        Start = cpu_seconds(),
        End = run_until(Run, Start + Done * Weight - Used),
        {Name, Run, Weight, Used + End - Start}
    end,
    run_phases(Done, Seconds, [Measure(Phase) || Phase <- Phases]).

main([Seconds]) ->
    Phases = [
        {"fib", fun run_fib/0, 0.5, 0.0}, {"sieve", fun run_sieve/0, 0.3, 0.0}, {"text", fun run_text/0, 0.2, 0.0}
    ],
    Measured = run_phases(0.0, list_to_integer(Seconds), Phases),
    [io:format("phase ~s ~.6f~n", [Name, Used]) || {Name, _, _, Used} <- Measured],
    io:format("total ~.6f~n", [cpu_seconds()]),
    init:stop().
