# Functions that measure themselves: phases.rb SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock.

$spent = Hash.new(0.0)

def now
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
end

def work(limit)
  count = 0
  while now < limit
    i = 0
    while i < 300
      count += i * i % 7
      i += 1
    end
  end
  count
end

def plain(limit)
  work(limit)
end

def recursive(limit, depth = 40)
  depth > 0 ? recursive(limit, depth - 1) : work(limit)
end

def called_back(limit)
  [1, 0].sort_by { |_| work(limit) }
end

def fail(count)
  raise ArgumentError, "count #{count}"
end

def thrown(limit)
  count = 0
  while now < limit
    begin
      fail(count)
    rescue ArgumentError => error
      count += error.message.length
    end
  end
end

def nested(limit)
  1.times { [limit].each { |last| work(last) } }
end

def pooled(limit)
  work(limit)
end

def measure(name, seconds)
  start = now
  send(name, start + seconds)
  $spent[name] += now - start
end

def pool(count)
  count.times { measure(:pooled, 0.01) }
end

puts "begun"
$stdout.flush
rounds = (Float(ARGV[0]) * 20).to_i
threads = Array.new(2) { Thread.new { pool(rounds) } }
rounds.times do
  measure(:plain, 0.012)
  measure(:recursive, 0.008)
  measure(:nested, 0.006)
  measure(:thrown, 0.005)
  measure(:called_back, 0.004)
end
threads.each(&:join)
$spent.each { |name, seconds| puts "phase #{name} #{seconds}" }
