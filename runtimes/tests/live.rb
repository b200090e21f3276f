# Stacks of every kind that stay as they are, for a test that reads them from outside.
#
# Prints a line for each thread: its thread id, then NAME|FILE|LINE of each frame, innermost first, separated by
# tabs. Methods of C have file and line of their caller. The last line is that of a thread that is busy.

$stdout.sync = true
LOCK = Mutex.new
# Since 3.4 labels have the name of the class, which bytecode has not.
CLASS = /(?:[[:upper:]][[:word:]]*(?:::)?|#<[^>]*>)+[#.]/

def report(calls)
  parts = calls.map { |call| "#{call.label.sub(CLASS, "")}|#{call.path}|#{call.lineno}" }
  LOCK.synchronize { puts [Thread.current.native_thread_id, *parts].join("\t") }
end

def park
  report(caller_locations(0)); sleep 600
end

def recursive(depth)
  depth.zero? ? park : recursive(depth - 1)
end

def each_block
  [1].each do |one|
    [one].map do |_|
      { one: 1 }.each_pair { |_, _| 1.times { park } }
    end
  end
end

def sorted
  [2, 1].sort { |a, b| [[a, b]].max_by { |_| park; 1 } ; a <=> b }
end

def rescued
  raise ArgumentError, "it fails"
rescue ArgumentError
  begin
    Integer("one")
  rescue StandardError
    park
  end
end

def ensured
  yield
ensure
  park
end

def keywords(first = 1, *rest, key: 2, **options, &block)
  block.call(
    first,
    rest
  )
end

class Räume
  define_method(:größe) { |_| method_missing_too }

  def method_missing(name, *arguments)
    name == :method_missing_too ? public_send(:called, *arguments) : super
  end

  def respond_to_missing?(*)
    true
  end

  def called
    instance_eval { self.class.static }
  end

  def self.static
    eval("\n\nproc { park }.call", binding, "evaluated.rb", 7)
  end
end

def fibers
  Fiber.new { Fiber.new { recursive(2) }.resume }.resume
end

def external
  Enumerator.new { |out| out << 1; park }.tap { |values| values.next; values.next }
end

def symbols
  [Räume.new].each { |it| %w[called].each(&it.method(:public_send)) }
end

def caught
  catch(:done) { loop { [3].inject(1) { |_, _| park } } }
end

def work(depth)
  return [3, 1, 2].sort_by { |value| -value }.each_with_index.map { |value, at| value * at }.sum if depth.zero?
  1.times { return [depth].each { |left| work(left - 1) }.size + depth }
end

def busy
  total = 0
  loop { total += work(6) + (1..20).reduce(:+) + "text".gsub(/t/) { |t| t.upcase }.size }
end

# Compilers begin after some calls.
100.times { work(6) }

kinds = [
  -> { recursive(150) }, -> { each_block }, -> { sorted }, -> { rescued }, -> { ensured { 1 } },
  -> { keywords(key: 3) { |*_| park } }, -> { Räume.new.größe(1) }, -> { fibers }, -> { external },
  -> { symbols }, -> { caught }, method(:park).to_proc
]
kinds.each { |kind| Thread.new(&kind) }
Thread.new { puts Thread.current.native_thread_id; busy }
recursive(3)
