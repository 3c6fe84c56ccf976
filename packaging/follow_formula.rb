# ruby follow_formula.rb FORMULA.rb: does what `brew install` and `brew test` do with a formula, where there is no brew: the archive is fetched
# and its hash compared, `install` and `test` are run in empty folders. What it depends on is taken from the system, and must be listed.
require "digest"
require "open-uri"
require "pathname"
require "tmpdir"

NEEDED = %w[cmake ninja pkgconf hdf5 jansson pcre2 xxhash zlib].freeze # CMakeLists.txt looks for these

class Formula
  class << self
    attr_reader :test_block, :needs

    %i[desc homepage url sha256 license].each { |key| define_method(key) { |*value| value.empty? ? instance_variable_get("@#{key}") : instance_variable_set("@#{key}", value[0]) } }

    def depends_on(what) = (@needs ||= []) << (what.is_a?(Hash) ? what.keys[0] : what).to_s
    def test(&block) = @test_block = block
  end

  def initialize(prefix) = @prefix = Pathname(prefix)
  def bin = @prefix/"bin"
  def std_cmake_args = %W[-DCMAKE_INSTALL_PREFIX=#{@prefix} -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_BUILD_TYPE=Release -DCMAKE_FIND_FRAMEWORK=LAST]

  def system(*words)
    Kernel.system(*words.map(&:to_s), out: File::NULL) or abort "#{words.join(" ")}: status #{$?.exitstatus}"
  end

  def shell_output(command, status = 0)
    output = `#{command}`
    $?.exitstatus == status or abort "#{command}: status #{$?.exitstatus}, expected #{status}"
    output
  end

  def assert_match(pattern, text) = text.match?(pattern) || abort("#{pattern}: not in #{text}")
end

require File.expand_path(ARGV[0])
missing = NEEDED - Firstdiff.needs
abort "#{ARGV[0]}: depends_on lacks #{missing.join(", ")}" unless missing.empty?
archive = Firstdiff.url.start_with?("file://") ? File.binread(Firstdiff.url.delete_prefix("file://")) : URI.parse(Firstdiff.url).open.read
found = Digest::SHA256.hexdigest(archive)
abort "#{Firstdiff.url}: SHA-256 #{found}, expected #{Firstdiff.sha256}" if found != Firstdiff.sha256
Dir.mktmpdir do |folder|
  IO.popen(%W[tar -xz --strip-components=1 -C #{folder}], "wb") { |tar| tar.write(archive) }
  formula = Firstdiff.new("#{folder}/prefix")
  Dir.chdir(folder) { formula.install }
  Dir.mkdir("#{folder}/test")
  Dir.chdir("#{folder}/test") { formula.instance_eval(&Firstdiff.test_block) }
  puts "tried: #{ARGV[0]}: #{formula.bin}/firstdiff"
end
